"""A case: settings, arrivals and aborts, small enough to read."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from attrs import Factory, fields, frozen

from ksim.scheduling.limits import Limits
from ksim.testing.connected import Transfer
from ksim.testing.loop import ROOMY, Loop


@frozen(repr=False)
class Arrival:
    """A request.  All prompts of a `family` begin with the same tokens."""

    turn: int
    prompt: int
    output: int
    overrun: int = 0  # tokens that the scheduler expects after the last one, where a stop token ends the output
    priority: int = 0
    family: int = 0
    reads_cache: bool = True
    transfer: Transfer | None = None

    def chunks(self, block_tokens: int, *, named_outputs: bool) -> list[tuple[int, int]]:
        """The names of its blocks.

        They cover the prompt and, with *named_outputs*, the output, which then equals that of its family.
        """
        blocks = (self.prompt + self.output) // block_tokens + 1 if named_outputs else -(-self.prompt // block_tokens)
        return [(self.family, place) for place in range(blocks)]

    def __repr__(self) -> str:
        """Only the fields that differ from their defaults."""
        shown = [f"{a.name}={getattr(self, a.name)}" for a in fields(type(self))
                 if a.default != getattr(self, a.name)]
        return f"Arrival({', '.join(shown)})"


@frozen
class Case:
    """`settings` are keywords of `ksim.testing.loop.loop`.

    An abort is (turn, request, whether a batch is in flight).
    """

    settings: dict[str, Any]
    arrivals: tuple[Arrival, ...]
    aborts: tuple[tuple[int, int, bool], ...] = ()
    named_outputs: bool = True

    @property
    def coming(self) -> tuple[Arrival, ...]:
        """The arrivals in order of time, which is the order of their numbers."""
        return tuple(sorted(self.arrivals, key=lambda arrival: arrival.turn))

    @property
    def limits(self) -> Limits:
        names = {attribute.name for attribute in fields(Limits)}
        return Limits(**(ROOMY | {key: value for key, value in self.settings.items() if key in names}))

    @property
    def longest(self) -> int:
        """The tokens of the longest request."""
        most: int = self.settings["max_model_len"]
        return max(min(a.prompt + a.output, most) for a in self.arrivals)

    def play(self, engine: Loop, naming: "Naming | None" = None) -> Iterator[Loop]:
        """Play the case on a fresh *engine*, and pause after every schedule and every update.

        *naming* gives requests and their contents names.
        """
        naming = naming or Naming()
        coming = list(self.coming)
        while coming or self._goes_on(engine):
            while coming and coming[0].turn <= engine.turns:
                self._arrive(engine, coming.pop(0), naming)
            self._abort(engine, in_flight=False)
            engine.schedule()
            yield engine
            self._abort(engine, in_flight=True)
            engine.update()
            yield engine

    def _goes_on(self, engine: Loop) -> bool:
        scheduler = engine.scheduler
        held = engine.connector is not None and (scheduler.has_requests or not engine.idle)
        return bool(held or len(scheduler.running) or len(scheduler.waiting))

    def _arrive(self, engine: Loop, arrival: Arrival, naming: "Naming") -> None:
        sent = arrival.turn * engine.tick
        engine.latest = max(sent, math.nextafter(engine.latest, math.inf))  # one request at a time
        chunks = arrival.chunks(engine.cache.block_tokens, named_outputs=self.named_outputs)
        job = engine.add(
            arrival.prompt, arrival.output, limit=arrival.output + arrival.overrun, priority=arrival.priority,
            reads_cache=arrival.reads_cache, arrival=sent, arrived=engine.latest, tenant=str(arrival.family),
            chunks=[naming.content(name) for name in chunks], request_id=naming.request(len(engine.jobs)))
        if engine.connector is not None and arrival.transfer is not None:
            engine.connector.transfers[job] = arrival.transfer

    def _abort(self, engine: Loop, *, in_flight: bool) -> None:
        for turn, number, when in self.aborts:
            if turn == engine.turns and when == in_flight and number < len(engine.jobs):
                engine.scheduler.abort(engine.jobs[number])


@frozen
class Naming:
    """The names of requests and contents; by default, their numbers."""

    request: Callable[[int], int] = Factory(lambda: lambda number: number)
    content: Callable[[tuple[int, int]], Any] = Factory(lambda: lambda name: name)
