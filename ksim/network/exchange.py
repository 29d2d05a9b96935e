"""A collective hop by hop: ranks are SimPy processes that send each other pieces, round by round.

`Route.seconds` is how long that takes where every hop has its links for itself, and is worked out without any event.
An `Exchange` is played where others use the links, too: hops between nodes are flows, which share them.
"""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy
from attrs import define, field

from ksim.network.routes import Hop, Route

__all__ = ["Exchange"]

Process = Generator[simpy.Event, Any, None]
#: Starts a hop's transfer once its latency is over; the event fires when all has arrived.
Send = Callable[[Hop], simpy.Event]


@define(eq=False)
class Exchange:
    """A collective of `size` bytes along `route`, on its way: each rank takes part in it as a process of its own.

    A rank enters a round when it has sent and received all of the round before.  `send` says how a hop's bytes travel;
    by default, each hop has its links for itself.
    """

    env: simpy.Environment
    route: Route
    size: float
    send: Send | None = None
    #: What each rank has yet to send and to receive, round by round, and the event that it has.
    _missing: Counter[tuple[int, int]] = field(init=False)
    _through: dict[tuple[int, int], simpy.Event] = field(init=False)
    _sent_by: dict[tuple[int, int], list[Hop]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._missing = Counter()
        for number, hops in enumerate(self.route.rounds):
            for hop in hops:
                self._missing.update(((hop.source, number), (hop.target, number)))
                self._sent_by.setdefault((hop.source, number), []).append(hop)
        self._through = {key: self.env.event() for key in self._missing}

    def play(self, ranks: Sequence[int]) -> simpy.Event:
        """Have all *ranks* take part from now on; the event fires when the last is through."""
        return self.env.all_of([self.env.process(self.take_part(rank)) for rank in ranks])

    def take_part(self, rank: int) -> Process:
        """Send the pieces of *rank*, from now on."""
        yield self.env.timeout(self.route.start)
        for number in range(len(self.route.rounds)):
            for hop in self._sent_by.get((rank, number), ()):
                self.env.process(self._pass(hop, number))
            if (rank, number) in self._through:
                yield self._through[rank, number]

    def _pass(self, hop: Hop, number: int) -> Process:
        """Pass on the pieces of one hop of round *number*."""
        if self.send is None:
            yield self.env.timeout(hop.seconds(self.size))
        else:
            yield self.env.timeout(hop.latency)
            yield self.send(hop)
        for key in ((hop.source, number), (hop.target, number)):
            self._missing[key] -= 1
            if not self._missing[key]:
                self._through[key].succeed()
