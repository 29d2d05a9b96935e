"""What a rank does in a step: segments of kernels, each up to a collective in which it meets other ranks."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from ksim.compute.graph import Collective
from ksim.flow.steps import KernelCost, PricedBlock

__all__ = ["ACROSS", "RankProgram", "Timed"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


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

    def seconds(self, fills: Sequence[KernelCost]) -> tuple[float, float]:
        """Seconds that no SM clock changes, and those at the boost clock that it does."""
        at_boost, clocked = self.at_boost, self.clocked
        for hole, times in self.holes:
            if fills[hole].is_compute_bound:
                clocked += times * fills[hole].lasts
            else:
                at_boost += times * fills[hole].lasts
        return at_boost, clocked


@frozen(eq=False)
class SegmentTemplate:
    """Kernels up to a collective, `message`, with `beside` beside it; of all steps of a shape.

    `experts` says whether the rows of experts are computed in it, which a rank may have drawn.
    """

    alone: KernelSequence
    message: KernelCost | None = None
    beside: KernelSequence = KernelSequence()
    experts: bool = False


class Timed(NamedTuple):
    """The segments of a step: columns of (segments,), in seconds at the boost clock."""

    at_boost: Floats
    clocked: Floats
    together: Floats
    beside: Floats


#: Groups of collectives in which all engines meet that share experts; in others, the ranks of one engine do.
ACROSS = ("data", "expert")
#: Collectives whose size follows from the rows that experts get, kind by kind.
_ROUTED = ("dispatch", "combine", "low_latency_dispatch", "low_latency_combine")


@define(eq=False)
class RankProgram:
    """The segments of a step's blocks in order, equal ones the same object.

    `layers` has for each segment the number of the mixture layer whose experts it computes, and `sent` that of the
    layer whose tokens its collective carries; -1 for none.
    """

    segments: list[SegmentTemplate] = field(factory=list, init=False)
    _expert_labels: frozenset[str] = frozenset()
    _alone: KernelSequence = field(default=KernelSequence(), init=False)
    _experts: bool = field(default=False, init=False)
    _hidden: KernelCost | None = field(default=None, init=False)
    _growing: Floats | None = field(default=None, init=False)

    @classmethod
    def of(cls, blocks: Sequence[PricedBlock], expert_labels: frozenset[str] = frozenset()) -> "RankProgram":
        """The program of *blocks*, without the kernels that have *expert_labels*: each rank has drawn its own."""
        program = cls(expert_labels=expert_labels)
        for block in blocks:
            program._take(block)
        program._end(None)
        return program

    @cached_property
    def distinct(self) -> tuple[list[SegmentTemplate], Ints]:
        """The different segments, and the place among them of each segment."""
        places: dict[SegmentTemplate, int] = {}
        which = np.array([places.setdefault(segment, len(places)) for segment in self.segments], np.intp)
        return [*places], which

    @cached_property
    def across(self) -> int:
        """How many collectives there are among engines that share experts."""
        return sum(segment.message is not None and segment.message.group in ACROSS for segment in self.segments)

    @cached_property
    def layers(self) -> Ints:
        experts = np.array([segment.experts for segment in self.segments])
        return np.where(experts, np.cumsum(experts) - 1, -1)

    @cached_property
    def sent(self) -> Ints:
        sent = np.full(len(self.segments), -1, np.intp)
        for kind in _ROUTED:
            carries = np.array([segment.message is not None and segment.message.family == kind
                                for segment in self.segments])
            sent = np.where(carries, np.cumsum(carries) - 1, sent)
        return sent

    def growing(self, collectives: Callable[[], Mapping[str, Collective]],
                seconds: Callable[[Collective], float]) -> Floats:
        """How many *seconds* of each segment's collective are for its bytes, where these are experts' tokens."""
        if self._growing is None:
            known, distinct = collectives(), self.distinct[0]
            by_segment = [seconds(known[segment.message.label]) if segment.message and segment.message.family in _ROUTED
                          else 0.0 for segment in distinct]
            self._growing = np.array(by_segment)[self.distinct[1]]
        return self._growing

    def timed(self, fills: Sequence[KernelCost]) -> Timed:
        """The segments of a step whose batch has the kernels *fills*."""
        distinct, which = self.distinct
        rows = [(*segment.alone.seconds(fills), segment.message.lasts if segment.message else 0.0,
                 sum(segment.beside.seconds(fills))) for segment in distinct]
        return Timed(*np.array(rows).T[:, which])

    def _take(self, block: PricedBlock) -> None:
        """Append *block*; from its second repetition on, all are the same."""
        if not any(isinstance(kernel, KernelCost) and (kernel.group or kernel.label in self._expert_labels)
                   for kernel in block.launches):
            for kernel in block.launches:
                self._alone = self._alone.and_then(kernel, block.repeat)
            return
        for _ in range(min(block.repeat, 2)):
            before = len(self.segments)
            for kernel in block.launches:
                self._add(kernel)
        self.segments += self.segments[before:] * (block.repeat - 2)

    def _add(self, kernel: KernelCost | int) -> None:
        if isinstance(kernel, KernelCost) and kernel.label in self._expert_labels:
            self._experts = True
            return
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
        self._end(message, KernelSequence() if product is None else KernelSequence().and_then(product))

    def _end(self, message: KernelCost | None, beside: KernelSequence = KernelSequence()) -> None:
        self.segments.append(SegmentTemplate(self._alone, message, beside, self._experts))
        self._alone, self._experts = KernelSequence(), False
