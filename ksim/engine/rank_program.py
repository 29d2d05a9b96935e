"""A timeline as each rank plays it: a program of segments, cut at the collectives at which ranks meet."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from attrs import define, evolve, field, frozen

from ksim.flow.timeline import Lap, Pace, Span


class Segment(NamedTuple):
    """A rank computes for `alone` seconds, then is in a collective for `together`, beside kernels of `beside`."""

    alone: float
    together: float
    beside: float


@frozen
class KernelSequence:
    """Kernels of one rank in a row: seconds `at_boost`, those that are `clocked`, and how often each hole comes."""

    at_boost: float = 0.0
    clocked: float = 0.0
    holes: tuple[tuple[int, int], ...] = ()

    def and_then(self, span: Span | int, times: int = 1) -> "KernelSequence":
        """The same with *span* appended so many times; a hidden kernel runs at the boost clock."""
        if isinstance(span, int):
            return evolve(self, holes=(*self.holes, (span, times)))
        if span.clocked and not span.hidden:
            return evolve(self, clocked=self.clocked + times * span.lasts)
        return evolve(self, at_boost=self.at_boost + times * span.lasts)

    def seconds(self, fills: Sequence[Span], pace: float) -> float:
        own = sum(times * fills[hole].lasts * (pace if fills[hole].clocked else 1.0) for hole, times in self.holes)
        return self.at_boost + pace * self.clocked + own


@frozen(eq=False)
class SegmentTemplate:
    """A segment of all steps of a shape, before holes are filled and the clock is known."""

    alone: KernelSequence
    together: float = 0.0
    beside: KernelSequence = KernelSequence()

    def segment(self, fills: Sequence[Span], pace: float) -> Segment:
        return Segment(self.alone.seconds(fills, pace), self.together, self.beside.seconds(fills, pace))


@define(eq=False)
class RankProgram:
    """The segments of a timeline's laps in order, equal ones the same object; `seconds` times a collective."""

    seconds: Callable[[Span], float]
    segments: list[SegmentTemplate] = field(factory=list, init=False)
    _alone: KernelSequence = field(default=KernelSequence(), init=False)
    _hidden: Span | None = field(default=None, init=False)

    @classmethod
    def of(cls, laps: Sequence[Lap], seconds: Callable[[Span], float]) -> "RankProgram":
        program = cls(seconds)
        for lap in laps:
            program._take(lap)
        program.segments.append(SegmentTemplate(program._alone))
        return program

    def timed(self, fills: Sequence[Span], pace: Pace) -> list[Segment]:
        """The segments of a step with such *fills*, at *pace*."""
        known = {segment: segment.segment(fills, pace.time) for segment in dict.fromkeys(self.segments)}
        return [known[segment] for segment in self.segments]

    def _take(self, lap: Lap) -> None:
        """Append *lap*; from its second repetition on, all are the same."""
        if not any(isinstance(span, Span) and span.group for span in lap.spans):
            for span in lap.spans:
                self._alone = self._alone.and_then(span, lap.repeat)
            return
        for _ in range(min(lap.repeat, 2)):
            before = len(self.segments)
            for span in lap.spans:
                self._add(span)
        self.segments += self.segments[before:] * (lap.repeat - 2)

    def _add(self, span: Span | int) -> None:
        if isinstance(span, Span) and span.hidden:
            self._hidden = span
            return
        hidden, self._hidden = self._hidden, None
        if isinstance(span, Span) and span.group:
            self._meet(span, hidden)
        elif hidden:
            self._meet(hidden, span)
        else:
            self._alone = self._alone.and_then(span)

    def _meet(self, message: Span, product: Span | int | None) -> None:
        assert message.group, "what is hidden is a collective, or runs beside one"
        beside = KernelSequence() if product is None else KernelSequence().and_then(product)
        self.segments.append(SegmentTemplate(self._alone, self.seconds(message), beside))
        self._alone = KernelSequence()
