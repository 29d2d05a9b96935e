"""Price steps: the costs of one rank's kernels and collectives for each batch, and the time to launch them.

A step may have several forward passes: the target's own, and those of a drafter or of a vision encoder.  They run one
after another, so their seconds, joules and launch times add up.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from attrs import define, evolve, field, frozen

from ksim.compute.graph import Collective, Op, is_batch_dependent, is_of_adapters
from ksim.compute.kernels import Kernel
from ksim.compute.model import Model
from ksim.cost import batch_kernels
from ksim.cost.graphs import Graphs
from ksim.cost.plans import MOST, Plans
from ksim.cost.pricer import BatchLaunch, Overlap, Plan, Pricer, Shape, left
from ksim.cost.summaries import Summaries
from ksim.flow.batch import Batch, Batches, BatchRuns, Offsets
from ksim.flow.costs import Costs, StepSummary
from ksim.flow.steps import BatchKernels, Blocks, Ints, KernelCost, PricedBlock, StepColumns, StepCost
from ksim.network.network import Network
from ksim.specs.hardware import Gpu
from ksim.specs.host import Host
from ksim.specs.shard import Shard

__all__ = ["StepTimer", "Pass", "Passes", "Timer"]


#: From so many steps on, it is faster to summarize them together than one by one.
TOGETHER = 12


@define
class StepTimer:
    """Prices the kernels and collectives of steps, once for each distinct shape.

    `groups` names the GPUs that meet in each kind of collective; `graphs` says to how many tokens a step is padded and
    how its kernels are launched, and `host` what that takes.  With `overlap`, products run beside their sums; with
    `single_batch`, experts beside DeepEP's messages, and in graphs of up to `dual_stream` tokens shared experts beside
    the routed ones.  Where ranks differ by their experts, steps take as long as the
    fullest rank, or the `average` one.
    """

    model: Model
    shard: Shard
    gpu: Gpu
    oracle: Any = field(repr=False)
    network: Network = field(repr=False)
    groups: Mapping[str, Sequence[int]]
    graphs: Graphs
    host: Host = field(repr=False)
    overlap: Overlap | None = None
    average: bool = False
    single_batch: bool = False
    dual_stream: int = 0
    _known: dict[tuple[int, int, int, bool, bool], Plan] = field(factory=dict, init=False)
    _pricer: Pricer = field(init=False, repr=False)
    _batches: batch_kernels.BatchPricer = field(init=False, repr=False)
    _plans: Plans = field(init=False, repr=False)
    _summaries: Summaries = field(init=False, repr=False)
    _latest: tuple[Batch, Sequence[int], StepSummary] | None = field(default=None, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._pricer = Pricer(self.gpu, self.oracle, self.network, self.groups)
        self._batches = batch_kernels.BatchPricer(self._pricer)
        self._plans = Plans(self.model, self.shard, self._pricer, self.host, self.overlap, average=self.average,
                            single_batch=self.single_batch, dual_stream=self.dual_stream)
        self._summaries = Summaries(self._pricer, self.host.inputs, self._plans)
        if self.overlap:
            left(self.gpu, self.overlap.sms)  # or raise before anything is priced

    @property
    def pricer(self) -> Pricer:
        """What prices single kernels and collectives of the steps."""
        return self._pricer

    @property
    def prices(self) -> Hashable:
        """What is equal for timers whose steps cost the same, and share what is priced of them (`plan_as`)."""
        return self._plans

    @property
    def summarizes(self) -> bool:
        """Whether it summarizes steps without the costs of their kernels."""
        return self._summaries.complete

    def summarize(self, batches: Batch | Sequence[Batch],
                  tokens_by_rank: Sequence[int] = ()) -> StepSummary:
        """Summarize a step where data ranks have so many tokens, by default equally many, or many steps, as columns; of
        these there is at least one."""
        if tokens_by_rank and isinstance(batches, Batch):
            return self._summary(batches, tokens_by_rank)
        if isinstance(batches, Batch):
            plan = self._known.get(_counts(batches)) or self._whole([batches])[0]
            return self._summaries.of_batch(plan, batches) or self._priced_summaries([batches])[0]
        if len(batches) < TOGETHER:
            return StepSummary.stacked([self.summarize(batch) for batch in batches])
        plans = self._whole(batches)
        together = self._summaries.of_batches(plans[0], batches) if len(set(plans)) == 1 else None
        return together or self._priced_summaries(batches)

    def least_seconds(self, batch: Batch) -> float:
        """The seconds of what does not depend on the cached tokens of *batch*, at the boost clock."""
        return float(self.bound(batch)[0].costs.seconds)

    def _summary(self, batch: Batch, tokens_by_rank: Sequence[int]) -> StepSummary:
        if self._latest is not None and batch is self._latest[0] and tokens_by_rank == self._latest[1]:
            return self._latest[2]  # dummy steps are the same, over and over
        found = self._summaries.of_batch(self._plans.one(self._shape(batch, tokens_by_rank)), batch)
        if found is None:
            step = self.step_cost(batch, tokens_by_rank)
            found = StepSummary.of(step.costs, step.launch_seconds)
        self._latest = batch, tokens_by_rank, found
        return found

    def _priced_summaries(self, batches: Sequence[Batch]) -> StepSummary:
        steps = self.price(batches)
        return StepSummary.of(steps.costs, steps.launch_seconds)

    def price(self, batches: Sequence[Batch], tokens: Sequence[Sequence[int]] = ()) -> StepColumns:
        """Price each of *batches*, kernel by kernel, where data ranks have so many *tokens*, by default equally many.

        There is at least one.  All new launches are priced in a few questions to the oracle.
        """
        if not tokens:
            return self._priced(self._whole(batches), batches)
        shapes: dict[Any, Shape] = {}  # dummy steps are one batch, over and over
        keys = [(id(batch), *by_rank) for batch, by_rank in zip(batches, tokens, strict=True)]
        for key, batch, by_rank in zip(keys, batches, tokens, strict=True):
            if key not in shapes:
                shapes[key] = self._shape(batch, by_rank)
        own = dict(zip(shapes, self._plans.of([*shapes.values()]), strict=True))
        plans = [own[key] for key in keys]
        places: dict[tuple[Plan, int], int] = {}
        rows = np.array([places.setdefault((plan, id(batch)), len(places)) for plan, batch
                         in zip(plans, batches, strict=True)])
        first = np.unique(rows, return_index=True)[1].tolist()
        return self._priced([plans[row] for row in first], [batches[row] for row in first]).taken(rows)

    def step_cost(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> StepCost:
        """Price *batch* where data ranks have so many tokens, by default equally many.

        Where CUDA graphs hold them all, they are padded to the most, as in vLLM, so that all replay the same graph.
        """
        plan, kernels = self.bound(batch, tokens_by_rank)
        costs = self._batches.costs(kernels, batch)
        return plan.step((*costs, batch_kernels.inputs_of(batch, self.host.inputs)))

    def bound(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> tuple[Plan, dict[BatchLaunch, Kernel]]:
        """The plan of *batch*, and the kernels of its launches that depend on the batch, in order."""
        plan = (self._plans.one(self._shape(batch, tokens_by_rank)) if tokens_by_rank
                else self._known.get(_counts(batch)) or self._whole([batch])[0])
        launches = [(launch, launch.layer.over(batch)) for launch in plan.batch_launches]
        kernels = {launch: kernel for launch, kernel in launches if kernel is not None}
        if len(kernels) < len(launches):
            plan = self._plans.without(plan, frozenset(Op(launch.label, launch.layer) for launch, _ in launches
                                                       if launch not in kernels))
        return plan, kernels

    def share_with(self, other: "StepTimer") -> None:
        """Share the prices of batches' kernels with the timer of another stage, which has the same oracle and GPU."""
        other._batches = self._batches

    def beside(self, model: Model, shard: Shard, graphs: Graphs) -> "StepTimer":
        """A timer of a further pass, of *model*, on the same GPUs: what it computes on is there already."""
        inputs = evolve(self.host.inputs, copy=0.0, copy_sequence=0.0)
        return evolve(self, model=model, shard=shard, graphs=graphs, host=evolve(self.host, inputs=inputs))

    def price_as(self, other: "StepTimer") -> None:
        """Share the tables of prices of *other*, which is the same but for its `graphs` and the names of its GPUs."""
        self._pricer, self._batches, self._plans = other._pricer, other._batches, other._plans
        self._summaries = other._summaries

    def plan_as(self, other: "StepTimer") -> None:
        """Share the plans of *other*, which prices the steps of another engine at the same time.

        Prices of batches go on from one batch to the next, so each engine has its own.
        """
        self._plans, self._summaries = other._plans, other._summaries

    def launches(self, batch: Batch, tokens_by_rank: Sequence[int] = ()
                 ) -> list[tuple[Kernel | Collective, KernelCost, int]]:
        """The kernels and collectives of *batch* in order, the cost of each, and how often it runs."""
        blocks = self._plans.launched(self._shape(batch, tokens_by_rank))
        priced = self._plans.price([op for ops, _ in blocks for op in ops])
        launches: list[tuple[Kernel | Collective, KernelCost, int]] = []
        for ops, repeat in blocks:
            for op in ops:
                if isinstance(op, Op) and is_batch_dependent(op.kernel):
                    kernel = op.kernel.over(batch)
                    launches += [(kernel, self._pricer.kernel(op.label, kernel), repeat)] if kernel is not None else []
                else:
                    launches += [(*launch, repeat) for launch in priced[op]]
        return launches

    def _priced(self, plans: Sequence[Plan], batches: Sequence[Batch]) -> StepColumns:
        """Price each of *batches* with its plan, which is one of a batch that has something for every launch."""
        launches, counted = _launches(plans), Batches.of(batches)
        bound = batch_kernels.bind(list(launches), counted)
        if bound:
            lacking = batch_kernels.missing(bound, len(batches))
            pairs = {(plan, id(ops)): (plan, ops) for plan, ops in zip(plans, lacking, strict=True)}
            own = dict(zip(pairs, self._plans.of([(*plan.shape[:-1], plan.shape[-1] | ops)
                                                  for plan, ops in pairs.values()]), strict=True))
            plans = [own[plan, id(ops)] for plan, ops in zip(plans, lacking, strict=True)]
        kernels = batch_kernels.price(launches, bound, counted, self._pricer)
        return _columns(plans, [*kernels, batch_kernels.inputs(counted, self.host.inputs)])

    def _whole(self, batches: Sequence[Batch]) -> list[Plan]:
        """The plan of each of *batches* as if it had something for every launch."""
        if len(self._known) > MOST:
            self._known.clear()
        runs = BatchRuns.of(batches).runs
        counts = [_counts(batch) for batch, _ in runs]
        new = {count: batch for count, (batch, _) in zip(counts, runs, strict=True) if count not in self._known}
        self._known.update(zip(new, self._plans.of([self._shape(batch) for batch in new.values()]), strict=True))
        return [plan for count, (_, length) in zip(counts, runs, strict=True)
                for plan in [self._known[count]] * length]

    def _shape(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> Shape:
        launching, tokens = self.graphs.of(batch)
        everywhere = None
        if tokens_by_rank and self.shard.data > 1:
            brought = Offsets.of(tokens_by_rank)
            most = self.graphs.padded(brought.most)
            tokens = max(tokens, most) if launching.graphs else tokens
            everywhere = len(brought) * most if most else brought.sum
        return tokens, batch.logits, launching, everywhere, self._missing[bool(batch.adapters), bool(batch.loads)]

    def traffic_key(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> Hashable:
        """What is equal for steps whose collectives are the same."""
        return self.prices, self._shape(batch, tokens_by_rank)

    @property
    def half(self) -> "StepTimer":
        """What prices one of two micro-batches, into which this timer cuts no step."""
        return self

    def everywhere(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> int:
        """The tokens that all data ranks together send through each layer, padded as in `step_cost`."""
        tokens, _, _, everywhere, _ = self._shape(batch, tokens_by_rank)
        return tokens * self.shard.data if everywhere is None else everywhere

    @cached_property
    def _missing(self) -> Mapping[tuple[bool, bool], frozenset[Op]]:
        """The launches that a batch lacks, by whether it has LoRA adapters, and some to copy to the GPU first."""
        ops = frozenset(op for block in self.model.body(1, self.shard) for op in block.ops
                        if is_of_adapters(op.kernel))
        loads = frozenset(op for op in ops if hasattr(op.kernel, "of_loads"))
        return {(some, loaded): loads - ops if some and loaded else loads if some else ops
                for some in (False, True) for loaded in (False, True)}


def _counts(batch: Batch) -> tuple[int, int, int, bool, bool]:
    """The numbers of *batch* on which its plan depends."""
    return batch.tokens, batch.logits, 0 if batch.chunks else batch.width, not batch.adapters, not batch.loads


def _launches(plans: Sequence[Plan]) -> dict[BatchLaunch, Ints]:
    """The batch launches of *plans*, each with the rows of the plans that have it.

    The order is that of the plan with the most; the others have some of these in the same order.
    """
    several = {id(plan.batch_launches): plan.batch_launches for plan in dict.fromkeys(plans)}
    if len(several) == 1:
        return dict.fromkeys(plans[0].batch_launches, np.arange(len(plans)))
    longest_first = sorted(several.values(), key=len, reverse=True)
    return {launch: np.array([row for row, plan in enumerate(plans) if launch in plan.batch_launches])
            for launch in dict.fromkeys(chain.from_iterable(longest_first))}


def _columns(plans: Sequence[Plan], kernels: Sequence[BatchKernels]) -> StepColumns:
    """The steps of *plans* with these *kernels* of their batches, the last of which copy their inputs.

    Attention is one family of kernels: it errs alike in all layers.
    """
    places = {plan: index for index, plan in enumerate(dict.fromkeys(plans))}
    which = [places[plan] for plan in plans]
    known = Costs.stacked(plan.costs for plan in places)[which]
    costs, reach = known + kernels[-1].kernels.costs, np.zeros_like(known.reach)
    for kernel in kernels[:-1]:
        costs.table[:, kernel.rows] += kernel.repeat * kernel.kernels.costs.table
        reach[:, kernel.rows] += kernel.repeat * kernel.kernels.costs.reach
    launch_seconds = np.array([plan.launch_seconds for plan in places])[which]
    return StepColumns([plan.blocks for plan in plans], kernels, costs.with_reach([known.reach, reach]),
                       [plan.launch for plan in plans], launch_seconds)


T = TypeVar("T")


def _as_many(tokens_by_rank: Sequence[int], number: int) -> Sequence[int]:
    return tokens_by_rank


@frozen(eq=False)
class Pass:
    """Forward passes of another model in a step: `timer` prices the batches that `batches_of` makes of the step's.

    There may be none.  They run after the target's pass, or `before` it.  `tokens_by_rank` makes the tokens of data
    ranks in pass number n of those in the target's; by default, they are the same.  The timer is `StepTimer.beside` the
    target's.
    """

    timer: StepTimer
    batches_of: Callable[[Batch], Sequence[Batch]]
    before: bool = False
    tokens_by_rank: Callable[[Sequence[int], int], Sequence[int]] = _as_many

    def passes(self, batch: Batch, tokens_by_rank: Sequence[int]) -> Iterator[tuple[Batch, Sequence[int]]]:
        """What each pass beside *batch* computes, and the tokens of data ranks in it."""
        for number, own in enumerate(self.batches_of(batch)):
            yield own, self.tokens_by_rank(tokens_by_rank, number) if tokens_by_rank else ()

    def step_costs(self, batch: Batch, tokens_by_rank: Sequence[int]) -> list[StepCost]:
        """The cost of each pass beside *batch*."""
        return [self.timer.step_cost(own, there) for own, there in self.passes(batch, tokens_by_rank)]

    def launches(self, batch: Batch, tokens_by_rank: Sequence[int]
                 ) -> Iterator[tuple[Kernel | Collective, KernelCost, int]]:
        """The kernels and collectives of all passes beside *batch*, in order."""
        for own, there in self.passes(batch, tokens_by_rank):
            yield from self.timer.launches(own, there)

    def rounds(self, batches: Sequence[Batch]) -> Iterator[tuple[list[int], list[Batch]]]:
        """The first passes beside *batches*, then the second ones, and so on, each with the rows of the batches."""
        passes = [self.batches_of(batch) for batch in batches]
        for number in range(max(map(len, passes), default=0)):
            rows = [row for row, own in enumerate(passes) if len(own) > number]
            yield rows, [passes[row][number] for row in rows]


@define(eq=False)
class Passes:
    """A step timer of several passes: the `main` one is the target's, the `others` run beside it.

    It has the interface of `StepTimer`.  The costs of a step are exactly the sums of those of its passes.
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
        """Share the prices of batches' kernels with the timer of another stage, which has the same oracle and GPU."""
        self.main.share_with(other.main if isinstance(other, Passes) else other)

    def plan_as(self, other: "Passes") -> None:
        """Share the plans of *other*, as the timers of its passes do."""
        self.main.plan_as(other.main)
        for own, known in zip(self.others, other.others, strict=True):
            own.timer.plan_as(known.timer)

    @property
    def prices(self) -> Hashable:
        """Itself: what it joins of its passes is its own."""
        return self

    @property
    def summarizes(self) -> bool:
        """Whether it summarizes steps without the costs of their kernels."""
        return self.main.summarizes and all(other.timer.summarizes for other in self.others)

    def summarize(self, batches: Batch | Sequence[Batch],
                  tokens_by_rank: Sequence[int] = ()) -> StepSummary:
        """Summarize a step where data ranks have so many tokens, by default equally many, or many steps, as columns; of
        these there is at least one."""
        if isinstance(batches, Batch):
            further = (other.timer.summarize(own, there) for other in self.others
                       for own, there in other.passes(batches, tokens_by_rank))
            return sum(further, self.main.summarize(batches, tokens_by_rank))
        summaries = self.main.summarize(batches)
        for other in self.others:
            for rows, own in other.rounds(batches):
                summaries = summaries.plus(rows, other.timer.summarize(own))
        return summaries

    def least_seconds(self, batch: Batch) -> float:
        """The seconds of what does not depend on the cached tokens of *batch*, at the boost clock: the main pass' own.
        """
        return self.main.least_seconds(batch)

    def price(self, batches: Sequence[Batch], tokens: Sequence[Sequence[int]] = ()) -> StepColumns:
        """Price each of *batches*, kernel by kernel, where data ranks have so many *tokens*, by default equally many.
        """
        main = self.main.price(batches, tokens)
        further = [(other, np.array(rows), other.timer.price(own, [
            other.tokens_by_rank(tokens[row], number) for row in rows] if tokens else ()))
            for other in self.others for number, (rows, own) in enumerate(other.rounds(batches))]
        table, launch_seconds = main.costs.table.copy(), main.launch_seconds.copy()
        for _, rows, columns in further:
            table[:, rows] += columns.costs.table
            launch_seconds[rows] += columns.launch_seconds
        kernels = _in_order(main.batch_kernels, [(other, _beside(columns, rows)) for other, rows, columns in further])
        return StepColumns(self._blocks(main, further), [*chain(*kernels)], Costs(table), main.launch, launch_seconds)

    def step_cost(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> StepCost:
        """Price *batch* where data ranks have so many tokens, by default equally many."""
        main = self.main.step_cost(batch, tokens_by_rank)
        further = [(other, step) for other in self.others for step in other.step_costs(batch, tokens_by_rank)]
        kernels = _in_order(main.batch_kernels, [(other, step.batch_kernels[:-1]) for other, step in further])
        return StepCost(
            self._together(main.blocks, [(other, step.blocks) for other, step in further]), tuple(chain(*kernels)),
            sum((step.costs for _, step in further), main.costs), main.launch,
            sum((step.launch_seconds for _, step in further), main.launch_seconds))

    def launches(self, batch: Batch, tokens_by_rank: Sequence[int] = ()
                 ) -> list[tuple[Kernel | Collective, KernelCost, int]]:
        """The kernels and collectives of *batch* in order, the cost of each, and how often it runs."""
        further = [(other, [*other.launches(batch, tokens_by_rank)]) for other in self.others]
        return [*chain(*_in_order(self.main.launches(batch, tokens_by_rank), further))]

    def traffic_key(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> Hashable:
        """What is equal for steps whose collectives are the same."""
        return self.main.traffic_key(batch, tokens_by_rank), *(
            other.timer.traffic_key(own, there) for other in self.others
            for own, there in other.passes(batch, tokens_by_rank))

    def everywhere(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> int:
        """The tokens that all data ranks together send through each layer in the target's pass."""
        return self.main.everywhere(batch, tokens_by_rank)

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


#: The timer of an engine's steps, of one pass or of several.
Timer = StepTimer | Passes


def _in_order(main: T, further: Sequence[tuple[Pass, T]]) -> list[T]:
    """The values of the passes before the *main* one, of this one, and of those after it."""
    return [*(own for other, own in further if other.before), main,
            *(own for other, own in further if not other.before)]


def _beside(columns: StepColumns, steps: Ints) -> list[BatchKernels]:
    """The batch kernels of a further pass as kernels of the *steps*, without the last, which would copy inputs."""
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
    """*block* with its batch kernels numbered behind so many *kernels* of other passes."""
    return PricedBlock(block.kernels, tuple(place if place >= 0 else place - kernels for place in block.places),
                       block.repeat) if kernels else block
