"""A case: settings, arrivals and aborts, small enough to be read."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from attrs import Factory, fields, frozen

from ksim.scheduling.limits import Limits
from ksim.testing.loop import ROOMY, Loop


@frozen(repr=False)
class Arrival:
    """A request of the `family`, all of whose prompts begin alike."""

    turn: int
    prompt: int
    output: int
    overrun: int = 0  # tokens that the scheduler expects beyond the last, where a stop token ends the output
    priority: int = 0
    family: int = 0
    reads_cache: bool = True

    def chunks(self, block_tokens: int, *, named_outputs: bool) -> list[tuple[int, int]]:
        """The names of its blocks: of its prompt, or of its output too, which then equals that of its family."""
        blocks = (self.prompt + self.output) // block_tokens + 1 if named_outputs else -(-self.prompt // block_tokens)
        return [(self.family, place) for place in range(blocks)]

    def __repr__(self) -> str:
        """Only what is not as by default."""
        shown = [f"{a.name}={getattr(self, a.name)}" for a in fields(type(self))
                 if a.default != getattr(self, a.name)]
        return f"Arrival({', '.join(shown)})"


@frozen
class Case:
    """`settings` are those of `ksim.testing.loop.loop`; an abort is (turn, request, whether a batch is in flight)."""

    settings: dict[str, Any]
    arrivals: tuple[Arrival, ...]
    aborts: tuple[tuple[int, int, bool], ...] = ()
    named_outputs: bool = True

    @property
    def coming(self) -> tuple[Arrival, ...]:
        """The arrivals in their order, which numbers them."""
        return tuple(sorted(self.arrivals, key=lambda arrival: arrival.turn))

    @property
    def limits(self) -> Limits:
        names = {attribute.name for attribute in fields(Limits)}
        return Limits(**(ROOMY | {key: value for key, value in self.settings.items() if key in names}))

    @property
    def longest(self) -> int:
        """The most tokens that one of the requests has."""
        most: int = self.settings["max_model_len"]
        return max(min(a.prompt + a.output, most) for a in self.arrivals)

    def play(self, engine: Loop, naming: "Naming | None" = None) -> Iterator[Loop]:
        """Play it on a fresh *engine*, and pause after every schedule and every update.

        *naming* says what requests and their contents are called.
        """
        naming = naming or Naming()
        coming = list(self.coming)
        while coming or len(engine.scheduler.running) or len(engine.scheduler.waiting):
            while coming and coming[0].turn <= engine.turns:
                self._arrive(engine, coming.pop(0), naming)
            self._abort(engine, in_flight=False)
            engine.schedule()
            yield engine
            self._abort(engine, in_flight=True)
            engine.update()
            yield engine

    def _arrive(self, engine: Loop, arrival: Arrival, naming: "Naming") -> None:
        sent = arrival.turn * engine.tick
        engine.latest = max(sent, math.nextafter(engine.latest, math.inf))  # no two reach an engine at once
        chunks = arrival.chunks(engine.cache.block_tokens, named_outputs=self.named_outputs)
        engine.add(arrival.prompt, arrival.output, limit=arrival.output + arrival.overrun, priority=arrival.priority,
                   reads_cache=arrival.reads_cache, arrival=sent, arrived=engine.latest, tenant=str(arrival.family),
                   chunks=[naming.content(name) for name in chunks], request_id=naming.request(len(engine.jobs)))

    def _abort(self, engine: Loop, *, in_flight: bool) -> None:
        for turn, number, when in self.aborts:
            if turn == engine.turns and when == in_flight and number < len(engine.jobs):
                engine.scheduler.abort(engine.jobs[number])


@frozen
class Naming:
    """What requests and contents are called: by default, their numbers."""

    request: Callable[[int], int] = Factory(lambda: lambda number: number)
    content: Callable[[tuple[int, int]], Any] = Factory(lambda: lambda name: name)
