"""Compute beside communication: a product is cut along its rows, and each piece added up while the next is computed.

As Megatron-LM does: of S pieces, ``seconds = c_1 + sum(max(c_k, x_{k-1}), k = 2..S) + x_S``, where the products c have
the SMs that the collectives x leave them.  What both do of device memory they share: beside a collective, a product has
the bandwidth that its bytes leave, as long as the collective lasts.  That the collective in turn is slowed is left out.
EnergyLens (arXiv 2605.14249) aggregates overlap for energy like that; measured, products are 19 % slower beside
communication on average (arXiv 2507.03114), which is SMs and bandwidth together.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest

from attrs import evolve, field, frozen
from attrs.validators import ge

from ksim.compute.graph import Collective, Op
from ksim.compute.kernels.batched_gemm import BatchedGemm
from ksim.compute.kernels.gemm import FEWEST_ROWS, Gemm
from ksim.cost.plan import PricedLaunch
from ksim.cost.pricer import Pricer
from ksim.flow.kernels import KernelCost
from ksim.foundation.errors import ConfigError
from ksim.specs.hardware import Gpu

#: Collectives that add up what a product leaves each rank with.
SUMS = ("all_reduce", "reduce_scatter")


@frozen
class Overlap:
    """Into how many `stages` products are cut, and on how many `sms` their sums are sent."""

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
    """*ops* in order, products that *overlap* cuts and the collectives that directly follow to add them up as one."""
    rest = zip_longest(ops, ops[1:])
    for op, following in rest:
        summed = following and pair(op.label, op.kernel, following.label, following.kernel)
        if summed and len(overlap.pieces(summed.product.m)) > 1:
            next(rest)
            yield summed
        else:
            yield op


def pair(label: str, product: object, sum_label: str, message: object) -> Summed | None:
    """Both as one, where what *message* adds up over ranks is as much as *product* writes."""
    if isinstance(product, Gemm | BatchedGemm) and isinstance(message, Collective) and message.kind in SUMS and (
            message.bytes == product.work.writes):
        return Summed(label, product, sum_label, message)
    return None


def left(gpu: Gpu, sms: int, moved: float = 0.0) -> Gpu:
    """What *gpu* has for other kernels while one takes *sms* of it and moves so many bytes a second of its memory.

    Raises ConfigError where that is nothing.
    """
    if sms >= gpu.sms:
        raise ConfigError("overlap_sms", f"{sms} leaves nothing to compute with: {gpu.name} has {gpu.sms} SMs;"
                                         f" set it to {gpu.sms - 1} or less")
    if moved >= gpu.bandwidth:
        raise ConfigError("overlap_stages", f"a collective takes all the bandwidth of {gpu.name}'s memory,"
                                            f" {gpu.bandwidth:.3g} B/s; set it to 1")
    share = 1 - sms / gpu.sms
    return evolve(gpu, sms=gpu.sms - sms, flops={dtype: share * flops for dtype, flops in gpu.flops.items()},
                  bandwidth=gpu.bandwidth - moved, power=evolve(gpu.power, busy=share * gpu.power.busy))


def overlapped(pricer: Pricer, summed: Summed, overlap: Overlap) -> list[PricedLaunch]:
    """Price *summed* by *overlap*: both lanes, in which the kernel that ends first is hidden beside the next."""
    return [PricedLaunch(launch.kernel, launch.cost.beside()) if hidden else launch
            for launch, hidden in side_by_side(pricer, summed, overlap)]


def side_by_side(pricer: Pricer, summed: Summed, overlap: Overlap) -> Iterator[tuple[PricedLaunch, bool]]:
    """Price *summed* by *overlap*: its kernels in order, and which end first of those that begin with the next.

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
    """Prices pieces of a product on what *sms* SMs leave."""

    pricer: Pricer
    summed: Summed
    sms: int
    _known: dict[tuple[int, float], PricedLaunch] = field(factory=dict, init=False)

    def alone(self, rows: int, moved: float = 0.0) -> PricedLaunch:
        """A piece while others move so many bytes a second, all the time."""
        if (rows, moved) not in self._known:
            gpu, kernel = left(self.pricer.gpu, self.sms, moved), evolve(self.summed.product, m=rows)
            cost = evolve(self.pricer, gpu=gpu).kernel(self.summed.label, kernel)
            self._known[rows, moved] = PricedLaunch(kernel, evolve(cost, sms=gpu.sms))
        return self._known[rows, moved]

    def beside(self, rows: int, message: KernelCost, moved: float) -> PricedLaunch:
        """A piece that begins with *message*, which moves so many bytes a second and may end first."""
        free, held = self.alone(rows).cost, self.alone(rows, moved)
        share = min(1.0, message.seconds / held.cost.seconds)
        costs = free.costs * (1 - share) + held.cost.costs * share
        return PricedLaunch(held.kernel, evolve(
            held.cost, costs=held.cost.limiting(costs),
            roofline_ratio=(1 - share) * free.roofline_ratio + share * held.cost.roofline_ratio))
