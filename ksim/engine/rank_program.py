"""A timeline as each rank plays it: a program of segments, cut at the collectives at which ranks meet."""

from collections.abc import Sequence
from typing import NamedTuple

from attrs import define, evolve, field, frozen

from ksim.flow.costs import ClockScaling
from ksim.flow.kernels import KernelCost
from ksim.flow.steps import PricedBlock


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

    def and_then(self, kernel: KernelCost | int, times: int = 1) -> "KernelSequence":
        """The same with *kernel* appended so many times; a hidden kernel runs at the boost clock."""
        if isinstance(kernel, int):
            return evolve(self, holes=(*self.holes, (kernel, times)))
        if kernel.is_compute_bound and not kernel.hidden:
            return evolve(self, clocked=self.clocked + times * kernel.lasts)
        return evolve(self, at_boost=self.at_boost + times * kernel.lasts)

    def seconds(self, fills: Sequence[KernelCost], pace: float) -> float:
        own = sum(times * fills[hole].lasts * (pace if fills[hole].is_compute_bound else 1.0)
                  for hole, times in self.holes)
        return self.at_boost + pace * self.clocked + own


@frozen(eq=False)
class SegmentTemplate:
    """A segment of all steps of a shape, before holes are filled and the clock is known."""

    alone: KernelSequence
    together: float = 0.0
    beside: KernelSequence = KernelSequence()

    def segment(self, fills: Sequence[KernelCost], pace: float) -> Segment:
        return Segment(self.alone.seconds(fills, pace), self.together, self.beside.seconds(fills, pace))


@define(eq=False)
class RankProgram:
    """The segments of a step's blocks in order, equal ones the same object."""

    segments: list[SegmentTemplate] = field(factory=list, init=False)
    _alone: KernelSequence = field(default=KernelSequence(), init=False)
    _hidden: KernelCost | None = field(default=None, init=False)

    @classmethod
    def of(cls, blocks: Sequence[PricedBlock]) -> "RankProgram":
        program = cls()
        for block in blocks:
            program._take(block)
        program.segments.append(SegmentTemplate(program._alone))
        return program

    def timed(self, fills: Sequence[KernelCost], pace: ClockScaling) -> list[Segment]:
        """The segments of a step with such *fills*, at *pace*."""
        known = {segment: segment.segment(fills, pace.time) for segment in dict.fromkeys(self.segments)}
        return [known[segment] for segment in self.segments]

    def _take(self, block: PricedBlock) -> None:
        """Append *block*; from its second repetition on, all are the same."""
        if not any(isinstance(kernel, KernelCost) and kernel.group for kernel in block.launches):
            for kernel in block.launches:
                self._alone = self._alone.and_then(kernel, block.repeat)
            return
        for _ in range(min(block.repeat, 2)):
            before = len(self.segments)
            for kernel in block.launches:
                self._add(kernel)
        self.segments += self.segments[before:] * (block.repeat - 2)

    def _add(self, kernel: KernelCost | int) -> None:
        if isinstance(kernel, KernelCost) and kernel.hidden:
            self._hidden = kernel
            return
        hidden, self._hidden = self._hidden, None
        if isinstance(kernel, KernelCost) and kernel.group:
            self._meet(kernel, hidden)
        elif hidden:
            self._meet(hidden, kernel)
        else:
            self._alone = self._alone.and_then(kernel)

    def _meet(self, message: KernelCost, product: KernelCost | int | None) -> None:
        assert message.group, "what is hidden is a collective, or runs beside one"
        beside = KernelSequence() if product is None else KernelSequence().and_then(product)
        self.segments.append(SegmentTemplate(self._alone, message.lasts, beside))
        self._alone = KernelSequence()
