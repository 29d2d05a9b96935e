"""Launches of a layer of experts on two streams.

SGLang's single-batch overlap: experts' results are sent back while others are computed, and so are shared experts.

DeepEP's low-latency combine sends the rows of an expert as soon as the product that writes them (`down`) has, on a few
SMs of its own; on another stream run that product, on the other SMs, and the shared experts, whose inputs have been
there all along.  On Blackwell, the product is beside it in NVFP4 alone; elsewhere, shared experts run beside the
dispatch instead (SGLang 0ac832c3, batch_overlap/single_batch_overlap.py).  Of the two streams, the one that ends first
is hidden.  What is left out: that no row is sent before the first is computed, that both read and write the same
memory, and that fewer SMs may send more slowly.

Dual streams: in the CUDA graph of a small batch, shared experts run beside the routed ones, of which the shorter are
hidden (SGLang's DUAL_STREAM_TOKEN_THRESHOLD, srt/models/deepseek_v2.py; where SGLang makes the shared expert one more
routed one, that hides it as well).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from ksim.compute.graph import Collective, Op, is_batch_dependent
from ksim.compute.kernels.basic import GroupedGemm
from ksim.cost.pricer import PricedLaunch, Pricer, left
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu

__all__ = ["DualStream", "StreamPair", "SHARED", "on_two_streams", "side_by_side", "priced", "sending_sms"]

#: How labels of shared experts begin.
SHARED = "shared_"


@frozen
class StreamPair:
    """A collective, and the launches that run on another stream meanwhile: `down` on what SMs it leaves, if any."""

    message: Op
    others: tuple[Op, ...]
    down: Op | None = None

    @property
    def computed(self) -> tuple[Op, ...]:
        """The launches of the other stream, in order."""
        return (*((self.down,) if self.down else ()), *self.others)

    @property
    def ops(self) -> tuple[Op, ...]:
        """All launches."""
        return (self.message, *self.computed)


@frozen
class DualStream:
    """Launches of `shared` experts, and of the `routed` ones that run on another stream meanwhile."""

    shared: tuple[Op, ...]
    routed: tuple[Op, ...]

    @property
    def ops(self) -> tuple[Op, ...]:
        """All launches."""
        return (*self.shared, *self.routed)


def sending_sms(gpu: Gpu) -> int:
    """The SMs on which SGLang has results sent (`SGLANG_DEEPEP_LL_COMBINE_SEND_NUM_SMS` by default)."""
    return 32 if gpu.architecture == "blackwell" else 3


def _name(op: Op) -> str:
    return op.label.rpartition(".")[2]


def on_two_streams(ops: Sequence[Op]) -> Iterator[Op | DualStream]:
    """*ops* in order, with the experts of each layer on two streams: what adds both up comes after them."""
    shared: list[Op] = []
    routed: list[Op] = []
    for op in ops:
        if _name(op).startswith(SHARED):
            shared.append(op)
        elif shared and not isinstance(op.kernel, Collective) and not is_batch_dependent(op.kernel):
            routed.append(op)
            if _name(op) == "combine":
                adds = [one for one in shared if _name(one) == f"{SHARED}add"]
                yield DualStream(tuple(one for one in shared if one not in adds), tuple(routed))
                yield from adds
                shared, routed = [], []
        else:  # experts that are exchanged have streams of their own, as those of adapters do
            yield from (*shared, *routed, op)
            shared, routed = [], []
    yield from (*shared, *routed)


def side_by_side(ops: Sequence[Op], gpu: Gpu) -> Iterator[Op | StreamPair]:
    """*ops* in order, with those of each layer together that SGLang runs side by side on *gpu*: none, where there are
    no low-latency kernels of DeepEP."""
    layer: list[Op] = []
    for op in ops:
        layer.append(op)
        if isinstance(op.kernel, Collective) and op.kernel.kind == "low_latency_combine":
            yield from _of_layer(layer, gpu)
            layer = []
    yield from layer


def _of_layer(ops: Sequence[Op], gpu: Gpu) -> Iterator[Op | StreamPair]:
    """The ops of one layer up to the combine."""
    combine, blackwell = ops[-1], gpu.architecture == "blackwell"
    (dispatch,) = (op for op in ops if isinstance(op.kernel, Collective) and op.kernel.kind == "low_latency_dispatch")
    shared = tuple(op for op in ops if _name(op).startswith(SHARED))
    groups = (StreamPair(dispatch, () if blackwell else shared),
              StreamPair(combine, shared if blackwell else (), _down(ops, gpu)))
    together = {group.message: group for group in groups if group.computed}
    moved = {op for group in together.values() for op in group.computed}
    yield from (together.get(op, op) for op in ops if op not in moved)


def _down(ops: Sequence[Op], gpu: Gpu) -> Op | None:
    """The last product of the experts, where its rows are sent as soon as they are there."""
    *_, (op, kernel) = ((op, op.kernel) for op in ops if isinstance(op.kernel, GroupedGemm))
    return op if gpu.architecture != "blackwell" or kernel.activations is DType.NVFP4 else None


def priced(pricer: Pricer, group: StreamPair | DualStream,
           known: Mapping[Any, tuple[PricedLaunch, ...]]) -> list[PricedLaunch]:
    """Price *group*, of which all launches are *known* as they are alone; those of the shorter stream are hidden."""
    if isinstance(group, DualStream):
        streams = [[launch for op in ops for launch in known[op]] for ops in (group.shared, group.routed)]
        shorter, longer = sorted(streams, key=lambda launches: sum(launch.cost.seconds for launch in launches))
        return [*(PricedLaunch(launch.kernel, launch.cost.beside()) for launch in shorter), *longer]
    (message,) = known[group.message]
    computed = [launch for op in group.others for launch in known[op]]
    if group.down is not None:
        computed = [*_squeezed(pricer, known[group.down]), *computed]
    if sum(launch.cost.seconds for launch in computed) < message.cost.seconds:
        return [*(PricedLaunch(launch.kernel, launch.cost.beside()) for launch in computed), message]
    return [PricedLaunch(message.kernel, message.cost.beside()), *computed]


def _squeezed(pricer: Pricer, launches: Sequence[PricedLaunch]) -> Iterator[PricedLaunch]:
    """The same launches on the SMs that a collective beside them leaves."""
    gpu = left(pricer.gpu, sending_sms(pricer.gpu))
    for kernel, cost in launches:
        fewer = evolve(pricer, gpu=gpu).kernels([(cost.label, kernel)])[0]
        yield PricedLaunch(kernel, evolve(cost.replaced(seconds=max(cost.seconds, fewer.seconds)), sms=gpu.sms))
