"""Steps of two micro-batches: while one is in its all-to-all, the other computes (vLLM's dual batch overlap).

`ksim.cost.micro_batches` says when a batch is cut, where, and in which order the halves run.  What is not the model's
forward pass, the inputs before it and the rows of logits behind, is computed once.

With DeepEP's high-throughput kernels, all-to-alls have `sms` SMs, and products have the other SMs throughout
(v1/worker/ubatch_utils.py, `SMControlContextManager`).  Attention has them while an all-to-all is under way: for the
share of its time that all-to-alls have of that of all compute.  Low-latency kernels hold no SM between sending and
receiving.

What the compute stream waits for an all-to-all are the seconds of that; the rest of it is hidden.  Left out: the device
memory's bandwidth that all-to-alls take, and that shared experts run beside the combine; here they run before the
dispatch, and hide the other half's.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, zip_longest
from typing import Any

import numpy as np
from attrs import define, evolve, field, fields, frozen
from numpy.typing import NDArray

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.model import Model
from ksim.cost.batch_kernels import BatchPricer, inputs_of
from ksim.cost.graphs import Graphs, Launching
from ksim.cost.micro_batches import DboTurn, Halver, MicroBatches, waits
from ksim.cost.plans import MOST
from ksim.cost.pricer import left, of_host
from ksim.cost.step import TOGETHER, StepTimer
from ksim.flow.batch import Batch
from ksim.flow.costs import Costs, StepSummary
from ksim.flow.steps import Blocks, KernelColumns, KernelCost, PricedBlock, StepColumns, StepCost, runs_of
from ksim.specs.hardware import Gpu
from ksim.specs.shard import Shard

__all__ = ["DboTimer", "turns_of"]


Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@frozen(eq=False)
class _Program:
    """The turns of all steps with the same `blocks`, before the batch's kernels are known.

    `fixed` are the compute seconds of each turn (turns,) without these, and `holes` how often each of them is in it
    (turns, kernels).  `messages` are the different all-to-alls, `lasting` their seconds, and `which` is that of each
    turn (turns - 1,): the last has none.
    """

    blocks: Blocks
    fixed: Floats
    holes: Floats
    messages: tuple[KernelCost, ...]
    lasting: Floats
    which: Ints

    @classmethod
    def of(cls, blocks: Blocks, kernels: int) -> "_Program":
        """The program of steps of *blocks* that have so many kernels of their batches."""
        fixed, holes = [0.0], [np.zeros(kernels)]
        messages: list[KernelCost] = []
        which: list[int] = []
        for block in blocks:
            own, parts = _parts(block, kernels, len(messages))
            messages += own
            for _ in range(block.repeat if own else 1):
                for seconds, counts, message in parts:
                    times = 1 if own else block.repeat
                    fixed[-1] += times * seconds
                    holes[-1] = holes[-1] + times * counts
                    if message is not None:
                        which.append(message)
                        fixed.append(0.0)
                        holes.append(np.zeros(kernels))
        return cls(blocks, np.array(fixed), np.array(holes), tuple(messages),
                   np.array([message.lasts for message in messages]), np.array(which, dtype=np.intp))

    def turns(self, kernels: Sequence[KernelCost]) -> list[DboTurn]:
        """The turns of the step with these *kernels* of its batch."""
        compute = self.fixed + self.holes @ np.array([kernel.lasts for kernel in kernels])
        sent = np.append(self.lasting[self.which], 0.0)
        return [*map(DboTurn, compute.tolist(), sent.tolist())]

    def met(self, waited: Sequence[float]) -> list[KernelCost]:
        """The all-to-alls, each with the mean of the seconds that its runs make the compute stream wait."""
        runs = np.bincount(self.which, minlength=len(self.messages))
        totals = np.bincount(self.which, np.array(waited[:len(self.which)]), minlength=len(self.messages))
        return [_visible(message, total / count) for message, total, count
                in zip(self.messages, totals.tolist(), runs.tolist(), strict=True)]


_Part = tuple[float, Floats, int | None]


def _parts(block: PricedBlock, kernels: int, before: int) -> tuple[list[KernelCost], list[_Part]]:
    """The all-to-alls of *block*, and the compute before each of them, and after the last."""
    messages: list[KernelCost] = []
    parts: list[_Part] = []
    seconds, counts = 0.0, np.zeros(kernels)
    for launch in block.launches:
        if isinstance(launch, int):
            counts[launch] += 1
        elif _is_exchange(launch):
            parts.append((seconds, counts, before + len(messages)))
            messages.append(launch)
            seconds, counts = 0.0, np.zeros(kernels)
        else:
            seconds += launch.seconds
    return messages, [*parts, (seconds, counts, None)]


def _is_exchange(kernel: KernelCost) -> bool:
    """Whether *kernel* is a dispatch or a combine; all other collectives are on the compute stream."""
    return kernel.group == "expert"


def _visible(message: KernelCost, seconds: float) -> KernelCost:
    """*message* of which so many seconds are visible; its interval is that of a message that nothing hides."""
    if seconds <= 0.0:
        return message.beside()
    seconds = min(seconds, message.seconds)
    costs = message.costs.replaced(seconds=seconds, below=min(message.below, seconds))
    return evolve(message, costs=costs, hidden=message.seconds - seconds)


@frozen(eq=False)
class _Both:
    """What all steps of the same two plans share: the programs of the halves, and the `blocks` of both.

    In these, all-to-alls depend on the batch: their numbers follow those of the halves' kernels.  `costs` are of all
    other kernels, with the interval of each family in `reach`.
    """

    first: _Program
    second: _Program
    blocks: Blocks
    repeats: tuple[int, ...]
    costs: Costs
    reach: Mapping[str, Floats]

    @classmethod
    def of(cls, halves: tuple[StepCost, StepCost]) -> "_Both":
        first, second = (_Program.of(half.blocks, len(half.batch_kernels)) for half in halves)
        numbers = len(halves[0].batch_kernels), len(halves[1].batch_kernels)
        begins = sum(numbers), sum(numbers) + len(first.messages)
        parts = [_renumbered(half.blocks, before, begin) for half, before, begin
                 in zip(halves, (0, numbers[0]), begins, strict=True)]
        blocks = tuple(_together(*parts))
        families: dict[str, Costs] = {}
        for kernel, runs in chain(*(half.counted() for half in (_fixed(halves[0]), _fixed(halves[1])))):
            if not _is_exchange(kernel):
                families[kernel.family] = families.get(kernel.family, Costs.of()) + runs * kernel.costs
        repeats = tuple(runs_of(blocks, begins[1] + len(second.messages)))
        return cls(first, second, blocks, repeats, sum(families.values(), Costs.of()),
                   {family: costs.reach for family, costs in families.items()})

    def share(self, halves: tuple[StepCost, StepCost]) -> float:
        """The seconds of all-to-alls over those of all compute, at most 1."""
        turns = [turn for program, half in zip((self.first, self.second), halves, strict=True)
                 for turn in program.turns(half.batch_kernels)]
        compute = sum(turn.compute for turn in turns)
        return min(1.0, sum(turn.collective for turn in turns) / compute) if compute else 1.0

    def step(self, halves: tuple[StepCost, StepCost], launch: str, launch_seconds: float) -> StepCost:
        """The step of two *halves*, which have these programs."""
        programs = zip((self.first, self.second), halves, strict=True)
        waited = waits(*(program.turns(half.batch_kernels) for program, half in programs))
        kernels = (*halves[0].batch_kernels, *halves[1].batch_kernels,
                   *self.first.met(waited[0]), *self.second.met(waited[1]))
        costs, reach = self.costs, dict(self.reach)
        for kernel, runs in zip(kernels, self.repeats, strict=True):
            all_runs = runs * kernel.costs
            costs = costs + all_runs
            reach[kernel.family] = reach.get(kernel.family, np.zeros(2)) + all_runs.reach
        return StepCost(self.blocks, kernels, costs.with_reach(reach.values()), launch, launch_seconds, halves)


def _fixed(step: StepCost) -> StepCost:
    """*step* without the kernels that depend on its batch."""
    blocks = tuple(PricedBlock(block.kernels, tuple(place for place in block.places if place >= 0), block.repeat)
                   for block in step.blocks)
    return StepCost(blocks, (), Costs.of())


def _renumbered(blocks: Blocks, before: int, begin: int) -> list[list[PricedBlock]]:
    """*blocks*, each cut behind its all-to-alls, with *before* added to the numbers of the batch's kernels.

    All-to-alls become kernels of the batch themselves, with the numbers from *begin* on.
    """
    cut = []
    for block in blocks:
        pieces: list[list[int]] = [[]]
        for place, launch in zip(block.places, block.launches, strict=True):
            exchange = isinstance(launch, KernelCost) and _is_exchange(launch)
            pieces[-1].append(-1 - begin if exchange else place if place >= 0 else place - before)
            if exchange:
                begin += 1
                pieces.append([])
        cut.append([PricedBlock(block.kernels, tuple(piece), block.repeat) for piece in pieces])
    return cut


def _together(first: list[list[PricedBlock]], second: list[list[PricedBlock]]) -> Iterator[PricedBlock]:
    """The blocks of both halves: those of equal layers are one, in which the pieces of the halves alternate."""
    for a, b in zip_longest(first, second, fillvalue=list[PricedBlock]()):
        if a and b and (a[0].repeat, len(a)) == (b[0].repeat, len(b)):
            yield _joined([*chain(*zip(a, b, strict=True))])
        else:
            yield from (_joined(half) for half in (a, b) if half)


def _joined(pieces: Sequence[PricedBlock]) -> PricedBlock:
    """The launches of all *pieces*, which run equally often, in one block."""
    rows = [[place for place in piece.places if place >= 0] for piece in pieces]
    kernels = KernelColumns.joined([piece.kernels.taken(own) for piece, own in zip(pieces, rows, strict=True)])
    row = iter(range(len(kernels)))
    places = tuple(next(row) if place >= 0 else place for piece in pieces for place in piece.places)
    return PricedBlock(kernels, places, pieces[0].repeat)


def turns_of(half: StepCost) -> list[DboTurn]:
    """The turns of a *half* of a step (`StepCost.halves`), in order, at the boost clock."""
    return _Program.of(half.blocks, len(half.batch_kernels)).turns(half.batch_kernels)


@define(eq=False, slots=False)
class DboTimer(StepTimer):
    """A step timer that cuts steps in two where `micro_batches` says so; it prices all others as `StepTimer` does.

    Each half is priced by a timer of its own, whose GPU has the SMs that all-to-alls leave.  A half takes part in a
    CUDA graph of the whole step, which vLLM captures for decodes; other steps that are cut run without graphs.
    """

    micro_batches: MicroBatches = field(kw_only=True)
    _halves: dict[Launching, tuple[StepTimer, StepTimer]] = field(factory=dict, init=False, repr=False)
    _halver: Halver = field(factory=Halver, init=False, repr=False)
    _both: dict[tuple[int, int], _Both] = field(factory=dict, init=False, repr=False)
    _joined: dict[tuple[int, int], tuple[Blocks, Blocks]] = field(factory=dict, init=False, repr=False)

    @classmethod
    def like(cls, timer: StepTimer, micro_batches: MicroBatches) -> "DboTimer":
        """*timer* with micro-batches; raises ConfigError where all-to-alls leave no SM to compute on."""
        made = cls(**_settings(timer), micro_batches=micro_batches)
        made.price_as(timer)
        _gpu(made)
        return made

    @cached_property
    def half(self) -> StepTimer:
        """A timer of halves, on the SMs that all-to-alls leave."""
        return StepTimer(**{**_settings(self), "gpu": _gpu(self)})

    def beside(self, model: Model, shard: Shard, graphs: Graphs) -> StepTimer:
        """A timer of a further pass, which is never cut."""
        return StepTimer(**_settings(self)).beside(model, shard, graphs)

    @property
    def summarizes(self) -> bool:
        """Whether it summarizes steps without the costs of their kernels: not those of two micro-batches."""
        return False

    def summarize(self, batches: Batch | Sequence[Batch],
                  tokens_by_rank: Sequence[int] = ()) -> StepSummary:
        """Summarize a step where data ranks have so many tokens, by default equally many, or many steps, as columns; of
        these there is at least one."""
        if isinstance(batches, Batch):
            if not self.micro_batches.padded(batches, tokens_by_rank, self.graphs):
                return StepTimer.summarize(self, batches, tokens_by_rank)
            step = self.step_cost(batches, tokens_by_rank)
            return StepSummary.of(step.costs, step.launch_seconds)
        if len(batches) >= TOGETHER and not any(self.micro_batches.padded(batch, (), self.graphs) for batch in batches):
            return StepTimer.summarize(self, batches)
        return StepSummary.stacked([self.summarize(batch) for batch in batches])

    def least_seconds(self, batch: Batch) -> float:
        """The seconds of what does not depend on the cached tokens of *batch*, at the boost clock; 0 where it is cut in
        two."""
        cut = self.micro_batches.padded(batch, (), self.graphs)
        return 0.0 if cut else StepTimer.least_seconds(self, batch)

    def price(self, batches: Sequence[Batch], tokens: Sequence[Sequence[int]] = ()) -> StepColumns:
        """Price each of *batches*, kernel by kernel, where data ranks have so many *tokens*, by default equally many.
        """
        each = [*zip(batches, tokens or [()] * len(batches), strict=True)]
        if not any(self.micro_batches.padded(batch, by_rank, self.graphs) for batch, by_rank in each):
            return StepTimer.price(self, batches, tokens)
        return StepColumns.of([self.step_cost(batch, by_rank) for batch, by_rank in each])

    def traffic_key(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> Hashable:
        """What is equal for steps whose collectives are the same: those of halves depend on where they are cut."""
        padded = self.micro_batches.padded(batch, tokens_by_rank, self.graphs)
        return StepTimer.traffic_key(self, batch, tokens_by_rank), padded

    def step_cost(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> StepCost:
        """Price *batch* where data ranks have so many tokens, by default equally many.

        A step that is cut in two has `halves`.  The first has the inputs of both, the second all rows of logits.
        """
        padded = self.micro_batches.padded(batch, tokens_by_rank, self.graphs)
        if not padded:
            return StepTimer.step_cost(self, batch, tokens_by_rank)
        launching, timers, cut = self._cut(batch, padded)
        first, second = (timer.step_cost(half) for timer, half in zip(timers, cut, strict=True))
        halves = self._with_inputs(first, batch), self._with_head(second, batch.logits, launching)
        key = id(halves[0].blocks), id(halves[1].blocks)
        if key not in self._both:
            if len(self._both) > MOST:
                self._both.clear()
            self._both[key] = _Both.of(halves)  # it keeps the blocks, so that no others get their ids
        both, (first, second) = self._both[key], halves
        if self.micro_batches.sms:
            share = both.share(halves)
            halves = (self._freed(first, timers[0], cut[0], self._alone[0], share),
                      self._freed(second, timers[1], cut[1], self._alone[1], share))
        # One graph launches both halves and is replayed once; without graphs, the host launches all their kernels.
        seconds = first.launch_seconds if launching.graphs else first.launch_seconds + second.launch_seconds
        return both.step(halves, f"{launching.value}, two micro-batches", seconds)

    def launches(self, batch: Batch, tokens_by_rank: Sequence[int] = ()
                 ) -> list[tuple[Kernel | Collective, KernelCost, int]]:
        """The kernels and collectives of *batch*, of the first half and then of the second, and how often each runs."""
        padded = self.micro_batches.padded(batch, tokens_by_rank, self.graphs)
        if not padded:
            return StepTimer.launches(self, batch, tokens_by_rank)
        exchanges = iter([kernel for kernel in self.step_cost(batch, tokens_by_rank).batch_kernels
                          if _is_exchange(kernel)])
        _, timers, cut = self._cut(batch, padded)
        halves = [launch for timer, half in zip(timers, cut, strict=True) for launch in timer.launches(half)]
        ops = self.model.sampled(batch.logits, self.shard)
        priced = self._plans.price(ops)
        return [*((kernel, next(exchanges) if _is_exchange(cost) else cost, runs) for kernel, cost, runs in halves),
                *((*launch, 1) for op in ops for launch in priced[op])]

    def _cut(self, batch: Batch, padded: int) -> tuple[Launching, tuple[StepTimer, StepTimer], tuple[Batch, Batch]]:
        """How the halves of *batch* are launched, the timer of each, and the halves."""
        launching, _ = self.graphs.of(batch)
        if launching is not Launching.FULL:
            launching = Launching.EAGER if self.graphs.eager else Launching.COMPILED
        if launching not in self._halves:
            self._halves[launching] = self._timers(launching)
        return launching, self._halves[launching], self._halver.cut(batch, padded // 2, padded)

    def _timers(self, launching: Launching) -> tuple[StepTimer, StepTimer]:
        """A timer for each half; they share all prices but those of the batches, which go on in each by itself."""
        graphs = _Exact(way=launching)
        made = [StepTimer(**{**_settings(self), "gpu": _gpu(self), "graphs": graphs}) for _ in range(2)]
        made[1].plan_as(made[0])
        return made[0], made[1]

    @cached_property
    def _alone(self) -> tuple[BatchPricer, BatchPricer]:
        """Prices of the kernels of both halves' batches on the whole GPU."""
        return BatchPricer(self._pricer), BatchPricer(self._pricer)

    def _freed(self, half: StepCost, timer: StepTimer, batch: Batch, alone: BatchPricer, share: float) -> StepCost:
        """*half* whose attention has the whole GPU but for a *share* of its time.  Its interval stays what it was."""
        free = alone.costs(timer.bound(batch)[1], batch)
        held = half.batch_kernels[:len(free)]
        kernels = [_blended(one, other, share) for one, other in zip(free, held, strict=True)]
        saved = sum((runs * (kernel.costs + before.costs * -1) for kernel, before, runs
                     in zip(kernels, held, half.runs(), strict=False)), Costs.of())
        return evolve(half, batch_kernels=(*kernels, *half.batch_kernels[len(free):]),
                      costs=half.costs + saved.replaced(below=0.0, above=0.0))

    def _with_inputs(self, half: StepCost, batch: Batch) -> StepCost:
        """The first *half* with the copies of the inputs of the whole *batch*."""
        copies, own = inputs_of(batch, self.host.inputs), half.batch_kernels[-1]
        return evolve(half, batch_kernels=(*half.batch_kernels[:-1], copies),
                      costs=half.costs + own.costs * -1 + copies.costs)

    def _with_head(self, half: StepCost, rows: int, launching: Launching) -> StepCost:
        """The second *half* without inputs, and with so many *rows* of logits.

        Its interval is that of halves and heads that err together.
        """
        head = self._plans.head(rows)
        gap = head.launches.gaps(launching, self.host.inputs)
        key = id(half.blocks), rows
        if key not in self._joined:
            if len(self._joined) > MOST:
                self._joined.clear()
            waiting = PricedBlock.of([of_host("gaps", gap)])
            # An empty block stands for the inputs, so that the layers of both halves are at the same places.
            self._joined[key] = half.blocks, (PricedBlock.of(()), *half.blocks[1:], *head.blocks, waiting)
        costs = half.costs + half.batch_kernels[-1].costs * -1 + head.costs.with_reach(head.reach.values())
        seconds = 0.0 if launching.graphs else head.launches.seconds(launching, self.host.worker)
        return StepCost(self._joined[key][1], half.batch_kernels[:-1], costs + Costs.of(seconds=gap), half.launch,
                        half.launch_seconds + seconds)


@frozen
class _Exact(Graphs):
    """Half of a step that is launched in one `way` and padded already."""

    way: Launching = Launching.COMPILED

    def of(self, batch: Batch) -> tuple[Launching, int]:
        return self.way, batch.tokens


def _blended(free: KernelCost, held: KernelCost, share: float) -> KernelCost:
    """A kernel that is *held* for a *share* of its time, and else *free*."""
    costs = free.costs * (1 - share) + held.costs * share
    ratio = (1 - share) * free.roofline_ratio + share * held.roofline_ratio
    return evolve(held, costs=held.limiting(costs), roofline_ratio=ratio)


def _settings(timer: StepTimer) -> dict[str, Any]:
    """What *timer* was made of."""
    return {one.name: getattr(timer, one.name) for one in fields(StepTimer) if one.init}


def _gpu(timer: DboTimer) -> Gpu:
    """The GPU that the all-to-alls of *timer* leave to compute on."""
    sms = timer.micro_batches.sms
    return left(timer.gpu, sms, key="serve.dbo_comm_sms") if sms else timer.gpu
