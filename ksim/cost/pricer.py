"""Price launches: the costs of kernels and collectives to one rank, and the parts and plans of steps made of them.

A `Plan` is what all steps of as many tokens and samples share: a body, whose rows are tokens, and a head.

Compute beside communication: a product is cut along its rows, and each piece is all-reduced while the next is computed,
as in Megatron-LM.  With S pieces, ``seconds = c_1 + sum(max(c_k, x_{k-1}), k = 2..S) + x_S``, where the products c have
the SMs that the collectives x leave them.  What both do of device memory they share: beside a collective, a product has
the bandwidth that its bytes leave, as long as the collective lasts.  That the collective in turn is slowed is left out.
EnergyLens (arXiv 2605.14249) aggregates overlap for energy like that; measured, products are 19 % slower beside
communication on average (arXiv 2507.03114), which is SMs and bandwidth together.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise, zip_longest
from math import nan
from typing import Any, NamedTuple

import numpy as np
from attrs import evolve, field, frozen
from attrs.validators import ge
from numpy.typing import NDArray

from ksim.compute.graph import BatchDependent, Collective, HostCopy, KernelSweep, Op, is_of_adapters
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.basic import FEWEST_ROWS, BatchedGemm, Gemm
from ksim.compute.kernels.states import DeltaRule
from ksim.cost.energy import COMMUNICATING, Actions, actions, joules, sending
from ksim.cost.graphs import Launched, Launches, Launching, SplittingOp
from ksim.flow.costs import NAMES, Costs, StepSummary
from ksim.flow.steps import BOUNDS, COMPUTE, KernelColumns, KernelCost, KernelKind, PricedBlock, Shapes, StepCost
from ksim.foundation.errors import ConfigError
from ksim.network.network import Network
from ksim.oracles import Estimate, Estimates, estimates, peak
from ksim.specs.hardware import Gpu

__all__ = ["Pricer", "of_host", "BatchLaunch", "Part", "Plan", "PricedLaunch", "Shape", "launched_of", "parts_of",
           "priced_part", "Overlap", "Summed", "paired", "pair", "left", "overlapped", "side_by_side"]


#: The sources of estimates at the clocks at which GPUs were measured, or which go on from these.
MEASURED = tuple(tier + place for tier in ("measured", "learned") for place in ("", ", extrapolated"))


def of_host(label: str, seconds: float) -> KernelCost:
    """The cost of a wait, or of small kernels, that the host causes on a GPU for so many seconds."""
    return KernelCost(label, label, Costs.of(seconds=seconds), bound="launch", source="host")


@frozen
class Pricer:
    """Asks the oracle about kernels on `gpu`, and the network about collectives.

    `groups` names the GPUs that meet in each kind of collective.
    """

    gpu: Gpu
    oracle: Any = field(repr=False)
    network: Network = field(repr=False)
    groups: Mapping[str, Sequence[int]]

    def kernels(self, launches: Sequence[tuple[str, Kernel | Collective]]) -> list[KernelCost]:
        """Price all of *launches*, each with its label, in one question to the oracle."""
        kernels = [launched for _, launched in launches if not isinstance(launched, Collective | HostCopy)]
        answers = iter(estimates(self.oracle, kernels, self.gpu) if kernels else ())
        return [self.collective(label, launched) if isinstance(launched, Collective)
                else self._copy(label, launched) if isinstance(launched, HostCopy)
                else self._kernel(label, launched, next(answers)) for label, launched in launches]

    def _copy(self, label: str, copy: HostCopy) -> KernelCost:
        """A copy from host memory, which keeps no SM busy."""
        energy = joules(Actions(hbm=copy.bytes), self.gpu.power)
        costs = Costs.of(seconds=copy.seconds, joules=energy.total, bytes=copy.bytes, sm_action_joules=energy.core)
        return KernelCost(label, copy.family, costs, str(copy), bound="communication", source="network", launch="PCIe")

    def kernel(self, label: str, kernel: Kernel) -> KernelCost:
        """Price one kernel."""
        return self.kernels([(label, kernel)])[0]

    def sweep(self, labels: Sequence[str], sweep: KernelSweep) -> KernelColumns:
        """Price many kernels in one question; each of *labels* goes to equally many kernels, in order."""
        found = estimates(self.oracle, sweep, self.gpu)
        measured = np.array([source in MEASURED for source in found.sources])[found.source]
        cool: Any = (self.cool(sweep.kernel, "gemm") if isinstance(sweep.kernel, Gemm) else
                     sweep.spread([self.cool(sweep.kernel, family) for family in sweep.families]))
        costs, cool = self._costs(sweep.kernel, found, found.bound == COMPUTE, np.where(measured, cool, 1.0))
        kinds, kind = _kinds(labels, sweep, found)
        return KernelColumns(
            kinds=kinds, kind=kind, shapes=_shapes_of(sweep), costs=costs, waves=found.waves.copy(), idle=found.idle,
            roofline_ratio=cool * found.roofline_ratio, hidden=np.broadcast_to(0.0, len(sweep)))

    def _kernel(self, label: str, kernel: Kernel, found: Estimate) -> KernelCost:
        """The cost of *kernel* by the estimate *found*, at the boost clock, which may not be the measured one."""
        cool = self.cool(kernel, kernel.family) if found.source in MEASURED else 1.0
        costs, cool = self._costs(kernel, found, found.bound == "compute", cool)
        return KernelCost(label, kernel.family, costs, str(kernel), bound=found.bound, waves=found.waves,
                          idle=found.idle, launch=found.launch, source=found.source,
                          roofline_ratio=cool * found.roofline_ratio)

    def _costs(self, kernel: Any, found: Any, computes: Any, cool: Any) -> tuple[Costs, Any]:
        """The costs of a kernel, or of many whose numbers are columns, by the estimates *found*.

        A kernel that compute limits takes the share *cool* of its estimate at the boost clock, but no less than the
        peak allows; the share of each kernel is returned, too.
        """
        work = kernel.work
        if (cool < 1.0) if isinstance(cool, float) else (cool < 1.0).any():
            cool = np.maximum(cool, np.minimum(work.flops / peak(self.gpu, work.dtype) / found.seconds, 1.0))
        cool = cool * computes + (1 - computes)
        seconds = cool * found.seconds
        energy = joules(actions(kernel, seconds, self.gpu), self.gpu.power)
        return Costs.of(
            seconds=seconds, joules=energy.total, flops=work.flops, bytes=work.bytes,
            extrapolated=seconds * found.extrapolated, compute_bound=seconds * computes, sm_action_joules=energy.core,
            sm_active_joules=energy.busy, compute_bound_joules=energy.busy * computes,
            below=seconds - cool * found.low, above=cool * found.high - seconds), cool

    def cool(self, kernel: Any, family: str) -> Any:
        """The time at the boost clock over that at the measured clock, for kernels of *family* that arithmetic bounds.

        *kernel* may have columns of numbers, as those of a sweep have.
        """
        clocks = self.gpu.power.clocks
        weights = kernel.n * kernel.k * kernel.weights.bytes if isinstance(kernel, Gemm) else 0.0
        return clocks.cool(family, weights) if clocks else 1.0

    def sent(self, collective: Collective) -> float:
        """Bytes that a rank sends in *collective*, on average."""
        return self.network.route(collective, self.groups[collective.group]).sent * collective.bytes

    def sending(self, collective: Collective) -> Actions:
        """The actions of one rank in *collective*."""
        ranks = self.groups[collective.group]
        route, seconds = self.network.route(collective, ranks), self.network.seconds(collective, ranks)
        share = collective.sms / self.gpu.sms if collective.sms else COMMUNICATING
        return sending(route.sent * collective.bytes, route.routed * collective.bytes, seconds, share)

    def collective(self, label: str, collective: Collective) -> KernelCost:
        ranks = self.groups[collective.group]
        route = self.network.route(collective, ranks)
        seconds, least = self.network.seconds(collective, ranks), route.least(collective.bytes)
        low, high = self.network.interval(collective, ranks)
        energy = joules(self.sending(collective), self.gpu.power)
        costs = Costs.of(seconds=seconds, joules=energy.total, sm_action_joules=energy.core,
                         sm_active_joules=energy.busy, below=seconds - low, above=high - seconds)
        return KernelCost(label, collective.family, costs, str(collective), bound="communication",
                          group=collective.group, launch=f"{route.algorithm} {route.protocol}", source="network",
                          roofline_ratio=seconds / least if least else nan, sms=collective.sms)


def _kinds(labels: Sequence[str], sweep: KernelSweep, found: Estimates) -> tuple[list[KernelKind], Any]:
    """The different kinds of kernels of a sweep, and the number of each kernel's kind."""
    bounds, launches, sources = len(BOUNDS), len(found.launches), len(found.sources)
    number = (found.bound * launches + found.launch) * sources + found.source
    if len(labels) > 1:
        number = number + np.repeat(np.arange(len(labels)) * (bounds * launches * sources), len(sweep) // len(labels))
    known: dict[int, int] = {}
    kind = np.array([known.setdefault(code, len(known)) for code in number.tolist()], dtype=np.int32)
    kinds = []
    for code in known:
        label, rest = divmod(code, bounds * launches * sources)
        bound, rest = divmod(rest, launches * sources)
        launch, source = divmod(rest, sources)
        kinds.append(KernelKind(labels[label], sweep.families[label], BOUNDS[bound], "", found.launches[launch],
                                found.sources[source]))
    return kinds, kind


def _shapes_of(sweep: KernelSweep) -> Shapes:
    """The shapes of the kernels of *sweep*; a template with columns of numbers where their class has one."""
    if hasattr(sweep.kernel, "printed"):
        template, numbers = sweep.kernel.printed
        return Shapes.numbered(template, len(sweep), numbers)
    return Shapes.of(sweep.shapes())


Floats = NDArray[np.float64]


class PricedLaunch(NamedTuple):
    """A kernel or a collective, and what it costs."""

    kernel: Kernel | Collective
    cost: KernelCost


class BatchLaunch(NamedTuple):
    """A launch that depends on the batch, such as attention, and how often it runs in a step."""

    label: str
    layer: BatchDependent
    repeat: int


@frozen(eq=False)
class Part:
    """The costs of a part of a step without the launches that depend on the batch.

    `reach` has, for each family of kernels, how far its 90 % interval reaches down and up.
    """

    blocks: tuple[PricedBlock, ...]
    batch_launches: tuple[BatchLaunch, ...]
    costs: Costs
    reach: Mapping[str, Floats]
    launches: Launches


def priced_part(blocks: Sequence[tuple[Sequence[PricedLaunch | int], int]],
                batch_launches: tuple[BatchLaunch, ...]) -> Part:
    """The part of these *blocks*, each of which runs so often; an int is the number of a batch launch."""
    kernels = KernelColumns.of([launch.cost for launches, _ in blocks for launch in launches
                                if not isinstance(launch, int)])
    rows = iter(range(len(kernels)))
    places = [(tuple(-1 - launch if isinstance(launch, int) else next(rows) for launch in launches), repeat)
              for launches, repeat in blocks]
    launched: list[tuple[list[Launched], int]] = [
        ([launched_of(batch_launches[launch]) if isinstance(launch, int) else
          (launch.kernel, bool(launch.cost.hidden)) for launch in launches], repeat) for launches, repeat in blocks]
    return next(parts_of(kernels, places, 1, Launches.of(launched), batch_launches))


def launched_of(launch: BatchLaunch) -> Launched:
    """The entry of a batch launch for `Launches`: attention stands between graphs, kernels of adapters in them."""
    layer: Any = launch.layer
    if is_of_adapters(layer):
        return layer, False
    of_states = isinstance(kernel := getattr(layer, "kernel", None), DeltaRule) and kernel.phase == "prompts"
    return SplittingOp.STATES if of_states else SplittingOp.ATTENTION


def parts_of(kernels: KernelColumns, blocks: Sequence[tuple[tuple[int, ...], int]], sizes: int, launches: Launches,
             batch_launches: tuple[BatchLaunch, ...]) -> Iterator[Part]:
    """The part of each of so many *sizes*, whose kernels lie next to each other.

    *blocks* have places of kernels, counted without the sizes, or of batch launches, as in `PricedBlock`.
    """
    runs = [(place, repeat) for places, repeat in blocks for place in places if place >= 0]
    rows, repeats = (np.array([run[column] for run in runs], dtype=np.intp) for column in range(2))
    table = kernels.costs.table.reshape(len(NAMES), len(kernels) // sizes, sizes)[:, rows] * repeats[:, None]
    costs, members = table.sum(axis=1), _members(kernels, rows * sizes)
    reach = {family: Costs(table[:, which].sum(axis=1)).reach for family, which in members.items()}
    for size in range(sizes):
        yield Part(tuple(PricedBlock(kernels, tuple(place * sizes + size if place >= 0 else place for place in places),
                                     repeat) for places, repeat in blocks),
                   batch_launches, Costs(costs[:, size].copy()), {name: far[:, size] for name, far in reach.items()},
                   launches)


def _members(kernels: KernelColumns, rows: Any) -> dict[str, list[int]]:
    """Which of the kernels at *rows* are of each family."""
    members: dict[str, list[int]] = {}
    for number, kind in enumerate(kernels.kind[rows].tolist()):
        members.setdefault(kernels.kinds[kind].family, []).append(number)
    return members


#: Tokens, rows of logits, how they are launched, the tokens of all data ranks, and the launches that the batch has
#: nothing for.
Shape = tuple[int, int, Launching, int | None, frozenset[Op]]


@frozen(eq=False, slots=False)
class Plan:
    """Steps of one `shape`: the blocks of kernels that they share, and the launches that depend on the batch.

    `costs` are of the blocks.  The batch's kernels follow in the order of `batch_launches`, and the kernels that copy
    its inputs to the GPU are the last of them.
    """

    shape: Shape
    blocks: tuple[PricedBlock, ...]
    batch_launches: tuple[BatchLaunch, ...]
    costs: Costs
    launch: str
    launch_seconds: float

    @classmethod
    def of(cls, shape: Shape, body: Part, head: Part, gaps: float, launch_seconds: float) -> "Plan":
        """The step of a *body* and a *head*, with so many seconds of *gaps* between its kernels."""
        reach = dict(body.reach)
        for family, far in head.reach.items():
            reach[family] = reach[family] + far if family in reach else far
        costs = (body.costs + head.costs + Costs.of(seconds=gaps)).with_reach(reach.values())
        inputs = PricedBlock(_NOTHING, (-1 - len(body.batch_launches),))
        blocks = (inputs, *body.blocks, *head.blocks, _gaps(gaps))
        return cls(shape, blocks, body.batch_launches, costs, shape[2].value, launch_seconds)

    def step(self, kernels: tuple[KernelCost, ...]) -> StepCost:
        """The step with these *kernels* of its batch, the last of which copy its inputs.

        Attention is one family of kernels: it errs alike in all layers.
        """
        costs, reach = self.costs + kernels[-1].costs, np.zeros_like(self.costs.reach)
        for launch, kernel in zip(self.batch_launches, kernels, strict=False):
            runs = launch.repeat * kernel.costs
            costs, reach = costs + runs, reach + runs.reach
        return StepCost(self.blocks, kernels, costs.with_reach([self.costs.reach, reach]), self.launch,
                        self.launch_seconds)

    @cached_property
    def summary(self) -> StepSummary:
        """The summary of the blocks, without the batch's launches."""
        return StepSummary.of(self.costs, self.launch_seconds)


_NOTHING = PricedBlock.of(()).kernels


@lru_cache(maxsize=4096)
def _gaps(seconds: float) -> PricedBlock:
    """The block of the GPU's waits between kernels."""
    return PricedBlock.of([of_host("gaps", seconds)])


#: Collectives that add up what a product leaves each rank with.
SUMS = ("all_reduce", "reduce_scatter")


@frozen
class Overlap:
    """The number of `stages` into which products are cut, and of `sms` on which their sums are sent."""

    stages: int = field(validator=ge(1))
    sms: int = field(validator=ge(1))

    def pieces(self, rows: int) -> list[int]:
        """The rows of each piece of *rows*: at least as many as tensor cores take at a time, which may make it one."""
        count = max(1, min(self.stages, rows // FEWEST_ROWS))
        return [rows * (number + 1) // count - rows * number // count for number in range(count)]


@frozen
class Summed:
    """A product, and the collective that adds up the ranks' parts of its result, each with its label."""

    label: str
    product: Gemm | BatchedGemm
    sum_label: str
    message: Collective


def paired(ops: Sequence[Op], overlap: Overlap) -> Iterator[Op | Summed]:
    """*ops* in order; a product that *overlap* cuts and the collective after it that adds it up are one `Summed`."""
    rest = zip_longest(ops, ops[1:])
    for op, following in rest:
        summed = following and pair(op.label, op.kernel, following.label, following.kernel)
        if summed and len(overlap.pieces(summed.product.m)) > 1:
            next(rest)
            yield summed
        else:
            yield op


def pair(label: str, product: object, sum_label: str, message: object) -> Summed | None:
    """*product* and *message* as one, where the latter adds up what the former writes; else None."""
    if isinstance(product, Gemm | BatchedGemm) and isinstance(message, Collective) and message.kind in SUMS and (
            message.bytes == product.work.writes):
        return Summed(label, product, sum_label, message)
    return None


def left(gpu: Gpu, sms: int, moved: float = 0.0, key: str = "overlap_sms") -> Gpu:
    """The part of *gpu* left for other kernels while one takes *sms* of it and moves so many bytes a second.

    Raises ConfigError, about *key*, where nothing is left.
    """
    if sms >= gpu.sms:
        raise ConfigError(key, f"{sms} leaves nothing to compute with: {gpu.name} has {gpu.sms} SMs;"
                               f" set it to {gpu.sms - 1} or less")
    if moved >= gpu.bandwidth:
        raise ConfigError("overlap_stages", f"a collective takes all the bandwidth of {gpu.name}'s memory,"
                                            f" {gpu.bandwidth:.3g} B/s; set it to 1")
    share = 1 - sms / gpu.sms
    return evolve(gpu, sms=gpu.sms - sms, flops={dtype: share * flops for dtype, flops in gpu.flops.items()},
                  bandwidth=gpu.bandwidth - moved, power=gpu.power.of_sms(share))


def overlapped(pricer: Pricer, summed: Summed, overlap: Overlap) -> list[PricedLaunch]:
    """Price *summed* cut by *overlap*; of two kernels side by side, the one that ends first is hidden."""
    return [PricedLaunch(launch.kernel, launch.cost.beside()) if hidden else launch
            for launch, hidden in side_by_side(pricer, summed, overlap)]


def side_by_side(pricer: Pricer, summed: Summed, overlap: Overlap) -> Iterator[tuple[PricedLaunch, bool]]:
    """Yield the kernels of *summed* cut by *overlap*, in order, and whether each ends before the one beside it.

    A product with too few rows to be cut is priced as it stands, and its sum after it.
    """
    product, message = summed.product, summed.message
    rows = overlap.pieces(product.m)
    if len(rows) == 1:
        whole, total = pricer.kernels([(summed.label, product), (summed.sum_label, message)])
        yield from ((PricedLaunch(product, whole), False), (PricedLaunch(message, total), False))
        return
    sent = {size: evolve(message, bytes=message.bytes * size / product.m, sms=overlap.sms) for size in rows}
    messages = {size: PricedLaunch(piece, pricer.collective(summed.sum_label, piece)) for size, piece in sent.items()}
    moved = {size: pricer.sending(piece).hbm / messages[size].cost.seconds for size, piece in sent.items()}
    price = _Pieces(pricer, summed, overlap.sms)
    yield price.alone(rows[0]), False
    for before, size in pairwise(rows):
        both = [price.beside(size, messages[before].cost, moved[before]), messages[before]]
        first, last = sorted(both, key=lambda launch: launch.cost.seconds)
        yield from ((first, True), (last, False))
    yield messages[rows[-1]], False


@frozen
class _Pieces:
    """Prices pieces of a product on the SMs that a collective on `sms` SMs leaves."""

    pricer: Pricer
    summed: Summed
    sms: int
    _known: dict[tuple[int, float], PricedLaunch] = field(factory=dict, init=False)

    def alone(self, rows: int, moved: float = 0.0) -> PricedLaunch:
        """A piece while a collective moves so many bytes a second, all the time."""
        if (rows, moved) not in self._known:
            gpu, kernel = left(self.pricer.gpu, self.sms, moved), evolve(self.summed.product, m=rows)
            cost = evolve(self.pricer, gpu=gpu).kernel(self.summed.label, kernel)
            self._known[rows, moved] = PricedLaunch(kernel, evolve(cost, sms=gpu.sms))
        return self._known[rows, moved]

    def beside(self, rows: int, message: KernelCost, moved: float) -> PricedLaunch:
        """A piece that starts together with *message*, which moves so many bytes a second and may end first."""
        free, held = self.alone(rows).cost, self.alone(rows, moved)
        share = min(1.0, message.seconds / held.cost.seconds)
        costs = free.costs * (1 - share) + held.cost.costs * share
        return PricedLaunch(held.kernel, evolve(
            held.cost, costs=held.cost.limiting(costs),
            roofline_ratio=(1 - share) * free.roofline_ratio + share * held.cost.roofline_ratio))
