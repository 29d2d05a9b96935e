"""Steps of several forward passes: beside the target's own those of a drafter, or of a vision encoder.

The passes of a step run one after another, so what they cost adds up: time, energy, and what launches take.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar, overload

import numpy as np
from attrs import define, evolve, field, frozen

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.model import Model
from ksim.cost.plans import MOST
from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.flow.costs import Costs, StepSummary
from ksim.flow.kernels import KernelCost
from ksim.flow.steps import BatchKernels, Blocks, Ints, PricedBlock, StepColumns, StepCost
from ksim.specs.host import Host
from ksim.specs.shard import Shard

__all__ = ["Pass", "Passes", "Timer", "without_inputs"]

T = TypeVar("T")


def _as_many(tokens_by_rank: Sequence[int], number: int) -> Sequence[int]:
    return tokens_by_rank


@frozen(eq=False)
class Pass:
    """Forward passes of another model: `timer` prices the `batches_of` a step's batch, of which there may be none.

    They run after the target's pass, or `before` it.  `tokens_by_rank` says how many tokens data ranks have in the
    pass of a number, given theirs in the target's: as many, by default.  The timer's host is `without_inputs`.
    """

    timer: StepTimer
    batches_of: Callable[[Batch], Sequence[Batch]]
    before: bool = False
    tokens_by_rank: Callable[[Sequence[int], int], Sequence[int]] = _as_many

    def step_costs(self, batch: Batch, tokens_by_rank: Sequence[int]) -> list[StepCost]:
        """What each pass beside *batch* costs."""
        return [self.timer.step_cost(own, self.tokens_by_rank(tokens_by_rank, number) if tokens_by_rank else ())
                for number, own in enumerate(self.batches_of(batch))]

    def launches(self, batch: Batch, tokens_by_rank: Sequence[int]
                 ) -> Iterator[tuple[Kernel | Collective, KernelCost, int]]:
        """The kernels and collectives of all passes beside *batch*, in order."""
        for number, own in enumerate(self.batches_of(batch)):
            yield from self.timer.launches(own, self.tokens_by_rank(tokens_by_rank, number) if tokens_by_rank else ())

    def rounds(self, batches: Sequence[Batch]) -> Iterator[tuple[list[int], list[Batch]]]:
        """The first passes beside all *batches* that have one, the second ones, and so on, with the places of these."""
        passes = [self.batches_of(batch) for batch in batches]
        for number in range(max(map(len, passes), default=0)):
            rows = [row for row, own in enumerate(passes) if len(own) > number]
            yield rows, [passes[row][number] for row in rows]


def without_inputs(host: Host) -> Host:
    """*host* as it drives a further pass: what it computes on is on the GPU already."""
    return evolve(host, inputs=evolve(host.inputs, copy=0.0, copy_sequence=0.0))


@define(eq=False)
class Passes:
    """A step timer of several passes: that of the `main` model, which is the target, and `others` beside it.

    It has the interface of `StepTimer`, and a step costs exactly what its passes cost one by one.
    """

    main: StepTimer
    others: Sequence[Pass]
    _known: dict[tuple[int, ...], tuple[tuple[Blocks, ...], Blocks]] = field(factory=dict, init=False, repr=False)

    @property
    def model(self) -> Model:
        return self.main.model

    @property
    def shard(self) -> Shard:
        return self.main.shard

    @property
    def groups(self) -> Mapping[str, Sequence[int]]:
        """The GPUs that meet in each kind of collective."""
        return self.main.groups

    def share_with(self, other: "Timer") -> None:
        """Let the timer of another stage, with the same oracle and GPU, know what kernels of batches cost."""
        self.main.share_with(other.main if isinstance(other, Passes) else other)

    @overload
    def summarize(self, batches: Batch) -> StepSummary: ...

    @overload
    def summarize(self, batches: Sequence[Batch]) -> list[StepSummary]: ...

    def summarize(self, batches: Batch | Sequence[Batch]) -> StepSummary | list[StepSummary]:
        """What the clock has to know of a step, or of many; there is at least one."""
        if isinstance(batches, Batch):
            further = (other.timer.summarize(own) for other in self.others for own in other.batches_of(batches))
            return sum(further, self.main.summarize(batches))
        summaries = self.main.summarize(batches)
        for other in self.others:
            for rows, own in other.rounds(batches):
                for row, summary in zip(rows, other.timer.summarize(own), strict=True):
                    summaries[row] += summary
        return summaries

    def price(self, batches: Sequence[Batch]) -> StepColumns:
        """What each of *batches* costs one rank, kernel by kernel, where data ranks have as many tokens."""
        main = self.main.price(batches)
        further = [(other, np.array(rows), other.timer.price(own)) for other in self.others
                   for rows, own in other.rounds(batches)]
        table, launch_seconds = main.costs.table.copy(), main.launch_seconds.copy()
        for _, rows, columns in further:
            table[:, rows] += columns.costs.table
            launch_seconds[rows] += columns.launch_seconds
        kernels = _in_order(main.batch_kernels, [(other, _beside(columns, rows)) for other, rows, columns in further])
        return StepColumns(self._blocks(main, further), [*chain(*kernels)], Costs(table), main.launch, launch_seconds)

    def step_cost(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> StepCost:
        """What *batch* costs one rank where data ranks have so many tokens, by default as many each."""
        main = self.main.step_cost(batch, tokens_by_rank)
        further = [(other, step) for other in self.others for step in other.step_costs(batch, tokens_by_rank)]
        kernels = _in_order(main.batch_kernels, [(other, step.batch_kernels[:-1]) for other, step in further])
        return StepCost(
            self._together(main.blocks, [(other, step.blocks) for other, step in further]), tuple(chain(*kernels)),
            sum((step.costs for _, step in further), main.costs), main.launch,
            sum((step.launch_seconds for _, step in further), main.launch_seconds))

    def launches(self, batch: Batch, tokens_by_rank: Sequence[int] = ()
                 ) -> list[tuple[Kernel | Collective, KernelCost, int]]:
        """The kernels and collectives of *batch* in order, what each costs, and how often it runs."""
        further = [(other, [*other.launches(batch, tokens_by_rank)]) for other in self.others]
        return [*chain(*_in_order(self.main.launches(batch, tokens_by_rank), further))]

    def _blocks(self, main: StepColumns, further: Sequence[tuple[Pass, Ints, StepColumns]]) -> list[Blocks]:
        """The blocks of each step."""
        beside: list[list[tuple[Pass, Blocks]]] = [[] for _ in main.blocks]
        for other, rows, columns in further:
            for row, blocks in zip(rows.tolist(), columns.blocks, strict=True):
                beside[row].append((other, blocks))
        return [self._together(blocks, own) for blocks, own in zip(main.blocks, beside, strict=True)]

    def _together(self, main: Blocks, further: Sequence[tuple[Pass, Blocks]]) -> Blocks:
        """The blocks of one step: the same object for the same passes."""
        if not further:
            return main
        passes = tuple(_in_order(main, further))
        key = tuple(map(id, passes))
        if key not in self._known:
            if len(self._known) > MOST:
                self._known.clear()
            self._known[key] = passes, _joined(passes, main)  # the passes are kept, so that no others get their ids
        return self._known[key][1]


#: Who prices the steps of an engine: one pass, or several.
Timer = StepTimer | Passes


def _in_order(main: T, further: Sequence[tuple[Pass, T]]) -> list[T]:
    """What is of passes before the *main* one, of this one, and of those after it."""
    return [*(own for other, own in further if other.before), main,
            *(own for other, own in further if not other.before)]


def _beside(columns: StepColumns, steps: Ints) -> list[BatchKernels]:
    """The kernels of further passes that depend on their batches, as kernels of so many *steps*, without the last,
    which would copy inputs."""
    return [BatchKernels(steps[column.rows], column.repeat, column.kernels) for column in columns.batch_kernels[:-1]]


def _joined(passes: Sequence[Blocks], main: Blocks) -> Blocks:
    """The blocks of all *passes*, without the copies of inputs of those that are not *main*."""
    joined, kernels = list[PricedBlock](), 0
    for blocks in passes:
        own = blocks if blocks is main else blocks[1:]
        joined += (_later(block, kernels) for block in own)
        kernels += max((-place for block in own for place in block.places), default=0)
    return tuple(joined)


def _later(block: PricedBlock, kernels: int) -> PricedBlock:
    """*block* behind so many *kernels* of other passes that depend on their batches."""
    return PricedBlock(block.kernels, tuple(place if place >= 0 else place - kernels for place in block.places),
                       block.repeat) if kernels else block
