"""Tokens on their way to experts and back, over ranks that have batches of their own.

With `allgather_reducescatter`, vLLM's default, every rank gets all tokens with their router's logits, and the sums come
back by a reduce-scatter: over the data ranks or, where tensor-parallel ranks first divide their tokens, over all that
share the experts (vLLM, distributed/device_communicators/all2all.py, `AgRsAll2AllManager`;
config/parallel.py, `use_sequence_parallel_moe`).  DeepEP sends tokens only where they are needed: its low-latency
kernels a copy for each expert, its high-throughput ones a copy for each rank; for experts in FP8 with a scale for each
128 numbers.  Both bring BF16 back (github.com/deepseek-ai/DeepEP, README).
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from attrs import frozen

from ksim.compute.graph import Collective, CollectiveKind, Op
from ksim.compute.sizes import Sizes
from ksim.foundation.units import DType
from ksim.specs.deployment import Shard

__all__ = ["Combine", "Dispatch"]

#: Numbers that share an FP32 scale when a token is sent in FP8.
SCALED = 128
LOW_LATENCY: Mapping[str, CollectiveKind] = {"dispatch": "low_latency_dispatch", "combine": "low_latency_combine"}


@frozen
class Dispatch:
    """Bring the tokens of all data ranks to the experts; nothing where there is one."""

    label: str = "dispatch"

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        if shard.data == 1:
            return
        if _deepep(shard):
            yield Op(self.label, _sent(sizes, shard, "dispatch"))
        else:
            size = (sizes.volume("Tm") + sizes.volume("TE")) * DType.BF16.bytes
            yield Op(self.label, Collective("all_gather", size, _group(shard)))


@frozen
class Combine:
    """Add up what the experts made of each token, and bring it home."""

    label: str = "experts"

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        if shard.data > 1:
            if _deepep(shard):
                yield Op(f"{self.label}_combine", _sent(sizes, shard, "combine"))
            else:
                size = sizes.volume("Tm") * DType.BF16.bytes
                yield Op(f"{self.label}_reduce_scatter", Collective("reduce_scatter", size, _group(shard)))
        if shard.tensor > 1:
            kind: CollectiveKind = "all_gather" if shard.scattered else "all_reduce"
            yield Op(f"{self.label}_{kind}", Collective(kind, sizes.volume("tm") * DType.BF16.bytes, "tensor"))


def _deepep(shard: Shard) -> bool:
    return shard.exchange.startswith("deepep")


def _group(shard: Shard) -> str:
    return "expert" if shard.scattered else "data"


def _sent(sizes: Sizes, shard: Shard, way: Literal["dispatch", "combine"]) -> Collective:
    """What one rank sends to all, or gets back from them: bytes of the copies of its share of the tokens."""
    ranks, top_k, hidden = shard.expert_ranks, sizes.of["top_k"], sizes.of["m"]
    tokens = sizes.of["T"] / ranks
    each = hidden * DType.BF16.bytes
    if way == "dispatch" and shard.precision.of("experts")[1] is DType.FP8:
        each = hidden * DType.FP8.bytes + hidden / SCALED * DType.FP32.bytes
    if shard.exchange == "deepep_low_latency":
        return Collective(LOW_LATENCY[way], tokens * top_k * each, "expert")
    reached = ranks * (1 - (1 - 1 / ranks) ** top_k)  # ranks that one token's experts are expected to be on
    return Collective(way, tokens * reached * each, "expert")
