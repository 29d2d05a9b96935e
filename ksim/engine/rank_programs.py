"""What a rank does in a step: segments of kernels, each up to a collective in which it meets other ranks."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from ksim.compute.graph import Collective
from ksim.flow.steps import KernelCost, PricedBlock, StepCost

__all__ = ["ACROSS", "KernelSequence", "RankProgram", "SegmentTimes"]

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

    Of the kernels that depend on the rows of experts, which ranks draw, an average rank computes `experts` seconds, and
    beside the collective `experts_beside`.
    """

    alone: KernelSequence
    message: KernelCost | None = None
    beside: KernelSequence = KernelSequence()
    experts: float = 0.0
    experts_beside: float = 0.0

    @property
    def draws(self) -> bool:
        """Whether the rows of experts are computed in it."""
        return self.experts + self.experts_beside > 0


class SegmentTimes(NamedTuple):
    """The segments of a step: columns of (segments,), in seconds at the boost clock."""

    at_boost: Floats
    clocked: Floats
    together: Floats
    beside: Floats
    beside_clocked: Floats


#: Groups of collectives in which all engines meet that share experts; in others, the ranks of one engine do.
ACROSS = ("data", "expert")
#: Kernels beside a hidden collective last at least as long, but for rounding.
ENOUGH = 1 - 1e-9
#: Collectives whose size follows from the rows that experts get, kind by kind.
_ROUTED = ("dispatch", "combine", "low_latency_dispatch", "low_latency_combine")


@define(eq=False)
class RankProgram:
    """The segments of a step's blocks in order, equal ones the same object.

    `layers` has for each segment the number of the mixture layer whose experts it computes, and `sent` that of the
    layer whose tokens its collective carries; -1 for none.  Of two micro-batches, `halves` has the programs: their
    segments alternate, `order` says how, and layers of the second are numbered behind those of the first.
    """

    segments: list[SegmentTemplate] = field(factory=list, init=False)
    _expert_labels: frozenset[str] = frozenset()
    _alone: KernelSequence = field(default=KernelSequence(), init=False)
    _experts: float = field(default=0.0, init=False)
    #: A hidden collective, and the kernels that run beside it or the next.
    _hidden: KernelCost | None = field(default=None, init=False)
    _beside: list[KernelCost | int] = field(factory=list, init=False)
    _growing: Floats | None = field(default=None, init=False)
    halves: "tuple[RankProgram, RankProgram] | None" = field(default=None, init=False)

    @classmethod
    def of(cls, blocks: Sequence[PricedBlock], expert_labels: frozenset[str] = frozenset()) -> "RankProgram":
        """The program of *blocks*, without the kernels that have *expert_labels*: each rank has drawn its own."""
        program = cls(expert_labels=expert_labels)
        for block in blocks:
            program._take(block)
        program._end(None)
        return program

    @classmethod
    def alternating(cls, halves: "tuple[RankProgram, RankProgram]") -> "RankProgram":
        """The program of two micro-batches, which change over at each exchange of experts' tokens, as in vLLM."""
        program = cls()
        program.halves = halves
        program.segments = [(*halves[0].segments, *halves[1].segments)[place] for place in program.order]
        return program

    @cached_property
    def order(self) -> Ints:
        """The places of segments among those of both halves, one after the other, in the order of this program."""
        if self.halves is None:
            return np.arange(len(self.segments))
        turns = [_turns(half.segments, begin) for half, begin in zip(self.halves, (0, len(self.halves[0].segments)),
                                                                    strict=True)]
        return np.array([place for pair in zip_longest(*turns, fillvalue=[]) for turn in pair for place in turn])

    @cached_property
    def strands(self) -> list[int]:
        """Which half each segment is of; 2 for the last, which both must have come to."""
        if self.halves is None:
            return [0] * len(self.segments)
        return [*(self.order[:-1] >= len(self.halves[0].segments)).astype(int).tolist(), 2]

    def _of_halves(self, column: str) -> Ints:
        """A *column* of layer numbers of both halves, in the order of this program."""
        assert self.halves is not None, "only programs of micro-batches have halves"
        first, second = (getattr(half, column) for half in self.halves)
        behind = self.halves[0].mixtures
        return np.concatenate([first, np.where(second < 0, second, second + behind)])[self.order]

    @cached_property
    def mixtures(self) -> int:
        """How many mixture layers it computes the experts of."""
        return sum(segment.draws for segment in self.segments)

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
        if self.halves:
            return self._of_halves("layers")
        experts = np.array([segment.draws for segment in self.segments])
        return np.where(experts, np.cumsum(experts) - 1, -1)

    @cached_property
    def besides(self) -> Floats:
        """The share of each segment's experts that runs beside its collective."""
        return np.array([segment.experts_beside / (segment.experts + segment.experts_beside) if segment.draws else 0.0
                         for segment in self.segments])

    @cached_property
    def sent(self) -> Ints:
        if self.halves:
            return self._of_halves("sent")
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

    def timed(self, step: StepCost) -> SegmentTimes:
        """The segments of *step*."""
        if self.halves and step.halves:
            both = [half.timed(own) for half, own in zip(self.halves, step.halves, strict=True)]
            return SegmentTimes(*(np.concatenate(columns)[self.order] for columns in zip(*both, strict=True)))
        fills = step.batch_kernels
        distinct, which = self.distinct
        rows = [(*segment.alone.seconds(fills), segment.message.lasts if segment.message else 0.0,
                 *segment.beside.seconds(fills)) for segment in distinct]
        return SegmentTimes(*np.array(rows).T[:, which])

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
        """Append *kernel*.  Of kernels side by side, the hidden ones come first: either all that run beside a
        collective, or a collective beside the kernels that follow, for as long as it lasts."""
        cost = None if isinstance(kernel, int) else kernel
        if self._hidden is not None:
            self._beside.append(kernel)
            if cost is None or sum(each.lasts for each in self._beside if not isinstance(each, int)) >= ENOUGH * (
                    self._hidden.lasts):
                self._end(self._hidden)
        elif cost is not None and cost.group and cost.hidden:
            self._hidden = cost
        elif cost is not None and cost.hidden:
            self._beside.append(cost)
        elif cost is not None and cost.group:
            self._end(cost)
        elif cost is not None and cost.label in self._expert_labels:
            self._experts += cost.lasts
        else:
            self._alone = self._alone.and_then(kernel)

    def _end(self, message: KernelCost | None) -> None:
        """End a segment with *message*, beside which run those kernels that wait for it."""
        beside, experts = KernelSequence(), 0.0
        for kernel in self._beside:
            if isinstance(kernel, KernelCost) and kernel.label in self._expert_labels:
                experts += kernel.lasts
            else:
                beside = beside.and_then(kernel)
        self.segments.append(SegmentTemplate(self._alone, message, beside, self._experts, experts))
        self._alone, self._experts, self._hidden, self._beside = KernelSequence(), 0.0, None, []


def _turns(segments: Sequence[SegmentTemplate], begin: int) -> list[list[int]]:
    """The places of *segments*, counted from *begin*, turn by turn: each ends with an exchange of experts' tokens."""
    turns: list[list[int]] = [[]]
    for place, segment in enumerate(segments, begin):
        turns[-1].append(place)
        if segment.message is not None and segment.message.family in _ROUTED:
            turns.append([])
    return turns
