"""Which kernels a collective does on its way: FlashInfer's all-reduce adds the residual and norms before it stores."""

from collections.abc import Mapping, Sequence

from attrs import evolve

from ksim.compute.graph import Block, Collective, KernelGraph, Op
from ksim.cost.network import Network
from ksim.cost.protocols import FUSED, FUSED_TWO_SHOT

_FUSED = {protocol.name for protocol in (*FUSED, *FUSED_TWO_SHOT)}
_NORM = "fused_add_rms_norm"


def launched(graph: KernelGraph, network: Network, groups: Mapping[str, Sequence[int]]) -> tuple[Block, ...]:
    """The blocks of *graph* without the norms that directly follow an all-reduce which *network* carries out fused."""
    blocks: list[Block] = []
    before: Op | None = None
    for block in graph.blocks:
        kept = []
        for op in block.ops:
            if not (getattr(op.kernel, "family", "") == _NORM and before and _fuses(before, network, groups)):
                kept.append(op)
            before = op
        blocks.append(evolve(block, ops=tuple(kept)))
    return tuple(blocks)


def _fuses(op: Op, network: Network, groups: Mapping[str, Sequence[int]]) -> bool:
    kernel = op.kernel
    if not isinstance(kernel, Collective) or kernel.kind != "all_reduce" or len(groups[kernel.group]) < 2:
        return False
    return network.route(kernel, groups[kernel.group]).protocol in _FUSED
