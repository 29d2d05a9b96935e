"""The costs of kernels and steps to one rank: durations, not dates.

A kernel is a `KernelCost`, or one row of many in `KernelColumns`; a step is a `StepCost`, or one of `StepColumns`.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from math import nan
from operator import attrgetter
from typing import Any

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from ksim.flow.costs import AT_BOOST, ClockScaling, Costed, Costs, Scalable

__all__ = ["BOUNDS", "COMPUTE", "LAUNCH", "MEMORY", "KernelColumns", "KernelCost", "KernelKind", "Shapes", "AT_BOOST",
           "BatchKernels", "ClockScaling", "PricedBlock", "Scalable", "StepColumns", "StepCost", "Ints", "Blocks",
           "runs_of"]


#: What limits a kernel or a collective, in the order of output columns; a name's place is its code.
BOUNDS = ("compute", "memory", "launch", "communication")
COMPUTE, MEMORY, LAUNCH = range(3)

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
Codes = NDArray[np.int32]


@frozen(eq=False)
class Shapes(Sequence[str]):
    """The shape of each of many kernels, printed when asked for.

    A shape is one of `templates`, whose places (``{:.0f}``) its column of `numbers` fills: (numbers, kernels).
    """

    templates: Sequence[str]
    template: Codes
    numbers: Floats

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Shapes":
        """Shapes that are texts."""
        known: dict[str, int] = {}
        template = np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int32)
        return cls([text.replace("{", "{{").replace("}", "}}") for text in known], template,
                   np.zeros((0, len(texts))))

    @classmethod
    def numbered(cls, template: str, kernels: int, numbers: Sequence[Any]) -> "Shapes":
        """The shapes of so many *kernels* with one *template*, and with these columns of *numbers*, or numbers."""
        columns = np.empty((len(numbers), kernels))
        for row, number in enumerate(numbers):
            columns[row] = number
        return cls([template], np.zeros(kernels, np.int32), columns)

    @classmethod
    def joined(cls, pieces: Sequence["Shapes"]) -> "Shapes":
        """All of *pieces*, one after another."""
        known: dict[str, int] = {}
        codes = [np.array([known.setdefault(text, len(known)) for text in piece.templates], dtype=np.int32)[
            piece.template] for piece in pieces]
        template, begin = np.concatenate([np.zeros(0, np.int32), *codes]), 0
        numbers = np.zeros((max((len(piece.numbers) for piece in pieces), default=0), len(template)))
        for piece in pieces:
            numbers[:len(piece.numbers), begin: begin + len(piece)] = piece.numbers
            begin += len(piece)
        return cls([*known], template, numbers)

    def taken(self, rows: Any) -> "Shapes":
        """The shapes at *rows*, each as often as it is listed."""
        return Shapes(self.templates, self.template[rows], self.numbers[:, rows])

    def distinct(self) -> tuple[Numbers, "Shapes"]:
        """For each shape its number among the distinct ones, and the distinct ones; shapes that print alike are one."""
        keys = np.concatenate([self.template[None], self.numbers])
        order = np.lexsort(keys)
        changed = (np.diff(keys[:, order], axis=1) != 0).any(axis=0)
        codes = np.empty(len(self), np.int64)
        codes[order] = np.concatenate([np.zeros(min(1, len(self)), np.int64), np.cumsum(changed)])
        first = order[np.concatenate([np.ones(min(1, len(self)), np.bool_), changed])]
        return self._merged(codes, self.taken(first))

    @staticmethod
    def _merged(codes: Numbers, shapes: "Shapes") -> tuple[Numbers, "Shapes"]:
        """*codes* and *shapes* with those merged that print alike."""
        rows: dict[str, int] = {}
        number = np.fromiter((rows.setdefault(text, len(rows)) for text in shapes), np.int64, len(shapes))
        first = np.unique(number, return_index=True)[1]
        return number[codes], shapes.taken(first)

    def __len__(self) -> int:
        return len(self.template)

    def __iter__(self) -> Iterator[str]:
        for template, numbers in zip(self.template.tolist(), self.numbers.T.tolist(), strict=True):
            yield self.templates[template].format(*numbers)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [*self.taken(row)]
        return self.templates[self.template[row]].format(*self.numbers[:, row].tolist())


@frozen
class KernelCost(Costed):
    """The costs of one kernel, or one collective, to one rank.

    `bound` is what limits it: compute, memory, launch or communication.  `waves` is how often its thread blocks fill
    the GPU, and `idle` the share of SMs without a block in the last of these waves.  `launch` names the tile, or the
    algorithm and the protocol; `source` is who priced it.  `roofline_ratio` is its time over the roofline's.

    A collective has a `group` of ranks, which start it together and end it together.  Where a kernel runs beside
    another, `sms` is how many SMs it has; 0 means the whole GPU.  The one of both that ends first adds no seconds:
    its own are `hidden`.
    """

    label: str
    family: str
    costs: Costs
    shape: Any = ""
    bound: str = field(default="memory", kw_only=True)
    waves: float = field(default=0.0, kw_only=True)
    idle: float = field(default=0.0, kw_only=True)
    launch: str = field(default="", kw_only=True)
    source: str = field(default="", kw_only=True)
    roofline_ratio: float = field(default=nan, eq=False, kw_only=True)  # nan is no equal of itself
    group: str = field(default="", kw_only=True)
    hidden: float = field(default=0.0, kw_only=True)
    sms: int = field(default=0, kw_only=True)

    @classmethod
    def of(cls, label: str, family: str, seconds: float, *, bound: str = "memory", low: float = nan, high: float = nan,
           extrapolated: bool = False, sm_active_joules: float = 0.0, joules: float = 0.0, flops: float = 0.0,
           bytes: float = 0.0, sm_action_joules: float = 0.0, **rest: Any) -> "KernelCost":
        """A kernel of so many *seconds*; further numbers are those of `Costs`, the *rest* fields."""
        compute = bound == "compute"
        costs = Costs.of(seconds=seconds, joules=joules, flops=flops, bytes=bytes, sm_action_joules=sm_action_joules,
                         sm_active_joules=sm_active_joules, below=seconds - low, above=high - seconds,
                         extrapolated=extrapolated * seconds, compute_bound=compute * seconds,
                         compute_bound_joules=compute * sm_active_joules)
        return cls(label, family, costs, bound=bound, **rest)

    @property
    def lasts(self) -> float:
        """Seconds from its start to its end."""
        return float(self.seconds + self.hidden)

    @property
    def is_compute_bound(self) -> bool:
        """Whether compute limits it, so that the SM clock sets its pace."""
        return self.bound == "compute"

    @property
    def is_extrapolated(self) -> bool:
        """Whether its shape lies outside what was measured."""
        return bool(self.costs.extrapolated)

    def limiting(self, costs: Costs) -> Costs:
        """*costs* with the numbers that follow from the kernel's bound, and from whether it is extrapolated."""
        compute, outside = self.is_compute_bound, self.is_extrapolated
        return costs.replaced(compute_bound=compute * costs.seconds, extrapolated=outside * costs.seconds,
                              compute_bound_joules=compute * costs.sm_active_joules)

    def replaced(self, **numbers: float) -> "KernelCost":
        """This kernel with other *numbers* of its costs."""
        return evolve(self, costs=self.limiting(self.costs.replaced(**numbers)))

    def beside(self) -> "KernelCost":
        """This kernel hidden beside one that ends later."""
        hidden = self.costs.replaced(seconds=0.0, compute_bound=0.0, extrapolated=0.0, below=0.0, above=0.0)
        return evolve(self, costs=hidden, hidden=self.seconds)


@frozen
class KernelKind:
    """The label, family and the like that kernels share which differ in numbers and shapes alone."""

    label: str
    family: str
    bound: str = "memory"
    group: str = ""
    launch: str = ""
    source: str = ""
    sms: int = 0


_KIND = attrgetter("label", "family", "bound", "group", "launch", "source", "sms")
#: The numbers of a launch, which are columns beside costs.
NUMBERS = ("waves", "idle", "roofline_ratio", "hidden")


@frozen(eq=False, kw_only=True)
class KernelColumns:
    """Many kernels as columns of (kernels,), named as in `KernelCost`; `kind` is the place of each in `kinds`."""

    kinds: Sequence[KernelKind]
    kind: Codes
    shapes: Shapes
    costs: Costs
    waves: Floats
    idle: Floats
    roofline_ratio: Floats
    hidden: Floats

    @classmethod
    def of(cls, kernels: Sequence[KernelCost]) -> "KernelColumns":
        """The columns of *kernels*."""
        known: dict[tuple[Any, ...], int] = {}
        kind = np.fromiter((known.setdefault(key, len(known)) for key in map(_KIND, kernels)), np.int32, len(kernels))
        rest = np.array([*map(attrgetter(*NUMBERS), kernels)], dtype=np.float64).reshape(-1, len(NUMBERS)).T.copy()
        return cls(kinds=[KernelKind(*key) for key in known], kind=kind,
                   shapes=Shapes.of([str(kernel.shape) for kernel in kernels]),
                   costs=Costs.stacked(kernel.costs for kernel in kernels), **dict(zip(NUMBERS, rest, strict=True)))

    @classmethod
    def joined(cls, pieces: Sequence["KernelColumns"]) -> "KernelColumns":
        """All of *pieces*, one after another."""
        known: dict[KernelKind, int] = {}
        kinds = [np.array([known.setdefault(kind, len(known)) for kind in piece.kinds], dtype=np.int32)[piece.kind]
                 for piece in pieces]
        columns = {name: _joined(getattr(piece, name) for piece in pieces) for name in NUMBERS}
        return cls(kinds=[*known], kind=np.concatenate([np.zeros(0, np.int32), *kinds]),
                   shapes=Shapes.joined([piece.shapes for piece in pieces]),
                   costs=Costs.joined([piece.costs for piece in pieces]), **columns)

    def taken(self, rows: Any) -> "KernelColumns":
        """The kernels at *rows*, each as often as it is listed."""
        columns = {name: getattr(self, name)[rows] for name in NUMBERS}
        return KernelColumns(kinds=self.kinds, kind=self.kind[rows], shapes=self.shapes.taken(rows),
                             costs=self.costs[rows], **columns)

    def of_kinds(self, kinds: Sequence[int]) -> "KernelColumns":
        """The same with only those of their kinds that have these numbers, in this order."""
        if [*kinds] == [*range(len(self.kinds))]:
            return self
        numbers = np.zeros(len(self.kinds), np.int32)
        numbers[kinds] = np.arange(len(kinds))
        return evolve(self, kinds=[self.kinds[kind] for kind in kinds], kind=numbers[self.kind])

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, row: int) -> KernelCost:
        """The kernel at *row*."""
        kind, numbers = self.kinds[self.kind[row]], {name: float(getattr(self, name)[row]) for name in NUMBERS}
        return KernelCost(kind.label, kind.family, self.costs[row], self.shapes[row], bound=kind.bound,
                          group=kind.group, launch=kind.launch, source=kind.source, sms=kind.sms, **numbers)


def distinct(codes: Codes) -> Codes:
    """The different *codes* in the order in which they come."""
    found, first = np.unique(codes, return_index=True)
    return np.asarray(found[first.argsort()])


def _joined(columns: Iterable[Floats]) -> Floats:
    return np.concatenate([np.zeros(0), *chain(columns)])


Ints = NDArray[np.intp]


@frozen(eq=False, slots=False)
class PricedBlock:
    """Launches that run one after another, `repeat` times over, such as those of equal layers.

    Each of `places` is a row of `kernels`.  Of a kernel that depends on the batch, it is -1 - its number among those
    of the step.
    """

    kernels: KernelColumns
    places: tuple[int, ...]
    repeat: int = 1

    @classmethod
    def of(cls, launches: Sequence[KernelCost | int], repeat: int = 1) -> "PricedBlock":
        """A block of kernels, and of the numbers of kernels that depend on the batch."""
        kernels = [launch for launch in launches if not isinstance(launch, int)]
        rows = iter(range(len(kernels)))
        return cls(KernelColumns.of(kernels), tuple(-1 - launch if isinstance(launch, int) else next(rows)
                                                    for launch in launches), repeat)

    @cached_property
    def launches(self) -> tuple[KernelCost | int, ...]:
        """The launches as `of` takes them."""
        return tuple(self.kernels[place] if place >= 0 else -1 - place for place in self.places)


Blocks = tuple[PricedBlock, ...]


@frozen
class StepCost(Costed):
    """The costs of one step to one rank of a pipeline stage.

    `blocks` have the kernels that depend on the number of tokens alone, and all steps of as many tokens share them.
    Attention depends on the batch: each step has `batch_kernels` of its own.  `costs` are those of all kernels.
    `launch` names the way in which the host launches them, and `launch_seconds` is the CPU time that takes.
    A step of two micro-batches that overlap has its `halves`, as if each were a step (`ksim.cost.dbo`).
    """

    blocks: Blocks
    batch_kernels: tuple[KernelCost, ...]
    costs: Costs
    launch: str = ""
    launch_seconds: float = 0.0
    halves: "tuple[StepCost, StepCost] | None" = field(default=None, eq=False, repr=False)

    @classmethod
    def of(cls, blocks: Sequence[PricedBlock], batch_kernels: Sequence[KernelCost] = ()) -> "StepCost":
        """The step with these kernels and the sum of their costs."""
        step = cls(tuple(blocks), tuple(batch_kernels), Costs.of())
        families: dict[str, Costs] = {}
        for kernel, runs in step.counted():
            families[kernel.family] = families.get(kernel.family, Costs.of()) + runs * kernel.costs
        total = sum(families.values(), Costs.of())
        return evolve(step, costs=total.with_reach(costs.reach for costs in families.values()) if families else total)

    def followed_by(self, kernel: KernelCost) -> "StepCost":
        """This step with *kernel* at its end, whose time is certain."""
        blocks = _with_one_more(self.blocks, len(self.batch_kernels))
        costs = self.costs + kernel.costs.replaced(below=0.0, above=0.0)
        return StepCost(blocks, (*self.batch_kernels, kernel), costs, self.launch, self.launch_seconds, self.halves)

    def runs(self) -> list[int]:
        """The number of runs of each of the batch's kernels."""
        return runs_of(self.blocks, len(self.batch_kernels))

    def counted(self) -> Iterator[tuple[KernelCost, int]]:
        """Each distinct kernel with how often it runs."""
        for block in self.blocks:
            for launch in block.launches:
                yield (self.batch_kernels[launch] if isinstance(launch, int) else launch), block.repeat

    def __iter__(self) -> Iterator[KernelCost]:
        """All kernels in order, one by one."""
        for block in self.blocks:
            kernels = [self.batch_kernels[launch] if isinstance(launch, int) else launch for launch in block.launches]
            for _ in range(block.repeat):
                yield from kernels


def runs_of(blocks: Sequence[PricedBlock], kernels: int) -> list[int]:
    """The number of runs in *blocks* of each of so many *kernels* of a batch."""
    runs = [0] * kernels
    for block in blocks:
        for place in block.places:
            if place < 0:
                runs[-1 - place] += block.repeat
    return runs


@lru_cache(maxsize=1024)
def _with_one_more(blocks: Blocks, number: int) -> Blocks:
    """*blocks* with the batch's kernel *number* at their end; equal arguments return the same object."""
    return (*blocks, PricedBlock(KernelColumns.of(()), (-1 - number,)))


@frozen(eq=False)
class BatchKernels:
    """Kernels that depend on the batch, one for each of the steps `rows`, which ascend; each runs `repeat` times."""

    rows: Ints
    repeat: int
    kernels: KernelColumns

    def taken(self, steps: Ints) -> "BatchKernels":
        """The kernels of those of *steps* that have one; a step may be listed several times."""
        places = np.searchsorted(self.rows, steps)
        rows = np.flatnonzero(self.rows[np.minimum(places, len(self.rows) - 1)] == steps)
        return BatchKernels(rows, self.repeat, self.kernels.taken(places[rows]))

    def at(self, step: int) -> KernelCost | None:
        """The kernel of one step, where it has one."""
        place = int(np.searchsorted(self.rows, step))
        return self.kernels[place] if place < len(self.rows) and self.rows[place] == step else None


@frozen(eq=False)
class StepColumns:
    """The costs of steps to one rank of a pipeline stage: `StepCost` for many, with columns of (steps,).

    `blocks` and `launch` have an entry for each step; those of equal steps are the same object.  All kernels of the
    steps are those of their blocks, as often as these repeat, and `batch_kernels`, in the order of their numbers.
    """

    blocks: Sequence[Blocks]
    batch_kernels: Sequence[BatchKernels]
    costs: Costs
    launch: Sequence[str]
    launch_seconds: Floats

    @classmethod
    def of(cls, steps: Sequence[StepCost]) -> "StepColumns":
        """The columns of *steps*."""
        return cls([step.blocks for step in steps], _batch_kernels(steps),
                   Costs.stacked(step.costs for step in steps), [step.launch for step in steps],
                   np.array([step.launch_seconds for step in steps]))

    def taken(self, rows: Ints) -> "StepColumns":
        """The steps at *rows*, each as often as it is listed."""
        places = rows.tolist()
        return StepColumns([self.blocks[row] for row in places], [each.taken(rows) for each in self.batch_kernels],
                           self.costs[rows], [self.launch[row] for row in places], self.launch_seconds[rows])

    def compacted(self) -> "StepColumns":
        """The same without what no step has of its kernels, as if the others had never been priced with these."""
        kernels = [each for each in self.batch_kernels if len(each.rows)]
        found: dict[int, dict[int, int]] = {}  # by list of kinds, which several may share: old and new numbers
        for each in kernels:
            numbers = found.setdefault(id(each.kernels.kinds), {})
            for kind in distinct(each.kernels.kind).tolist():
                numbers.setdefault(kind, len(numbers))
        return evolve(self, batch_kernels=[
            evolve(each, kernels=each.kernels.of_kinds([*found[id(each.kernels.kinds)]])) for each in kernels])

    def followed_by(self, kernels: KernelColumns) -> "StepColumns":
        """Each step with one of *kernels* at its end, whose time is certain."""
        counts = np.zeros(len(self), np.int64)
        for column in self.batch_kernels:
            counts[column.rows] += 1
        blocks = [_with_one_more(each, count) for each, count in zip(self.blocks, counts.tolist(), strict=True)]
        costs = self.costs + kernels.costs.replaced(below=0.0, above=0.0)
        return StepColumns(blocks, [*self.batch_kernels, BatchKernels(np.arange(len(self)), 1, kernels)], costs,
                           self.launch, self.launch_seconds)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, row: int) -> StepCost:
        """The costs of one step."""
        kernels = [kernel for column in self.batch_kernels if (kernel := column.at(row)) is not None]
        return StepCost(self.blocks[row], tuple(kernels), self.costs[row], self.launch[row],
                        float(self.launch_seconds[row]))


def _batch_kernels(steps: Sequence[StepCost]) -> list[BatchKernels]:
    """The batch kernels of *steps* as columns: those with equal numbers, labels and repeats go together."""
    rows: dict[tuple[Any, ...], list[int]] = {}
    for row, step in enumerate(steps):
        for number, (kernel, runs) in enumerate(zip(step.batch_kernels, step.runs(), strict=True)):
            rows.setdefault((number, kernel.label, kernel.family, runs), []).append(row)
    return [BatchKernels(np.array(of, dtype=np.intp), key[-1],
                         KernelColumns.of([steps[row].batch_kernels[key[0]] for row in of]))
            for key, of in sorted(rows.items(), key=lambda item: item[0])]
