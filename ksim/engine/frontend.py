"""The front end: the way of requests to an engine, and of its tokens to the users."""

from collections.abc import Callable

import simpy
from attrs import define, field

from ksim.flow.request import Request
from ksim.specs.host import Client


@define(eq=False)
class Frontend:
    """A process that accepts requests one after the other; tokens leave in the order in which they come."""

    env: simpy.Environment
    client: Client
    _free: float = field(default=0.0, init=False)
    delivered: float = field(default=0.0, init=False)

    def reach(self, request: Request, tokenized: bool = False) -> float:
        """Accept *request*; return when it will have come to the engine.

        If it is *tokenized*, its prompt comes as tokens from the engine that prefilled it.
        """
        client = self.client
        self._free = max(self._free, self.env.now) + client.accept
        return self._free + client.travel + (0.0 if tokenized else client.travel_token * request.prompt)

    def forward(self, request: Request, receive: Callable[[], None], tokenized: bool = False) -> float:
        """Call *receive* when *request* has come to the engine; return when that is."""
        moment = self.reach(request, tokenized)
        self._call(receive, moment)
        return moment

    def deliver(self, sequences: int, receive: Callable[[], None]) -> None:
        """Call *receive* when the users have what *sequences* of a step sampled."""
        self.delivered = self.delivery(sequences)
        self._call(receive, self.delivered)

    def delivery(self, sequences: int) -> float:
        """When the users will have what *sequences* of a step sampled that is taken in now."""
        client = self.client
        return max(self.delivered, self.env.now + client.deliver + client.deliver_sequence * sequences)

    def _call(self, receive: Callable[[], None], moment: float) -> None:
        if moment <= self.env.now:
            receive()
        else:
            self.env.timeout(moment - self.env.now).callbacks.append(lambda _: receive())
