"""How tokens travel to experts and back between data-parallel ranks.

With `allgather_reducescatter`, vLLM's default, every rank gets all tokens with their router logits, and a
reduce-scatter brings the sums back: over the data ranks or, where tensor-parallel ranks first divide their tokens, over
all ranks that share the experts (vLLM, distributed/device_communicators/all2all.py, `AgRsAll2AllManager`;
config/parallel.py, `use_sequence_parallel_moe`).  DeepEP sends tokens only where they are needed: its low-latency
kernels send a copy to each expert, its high-throughput ones a copy to each rank; in FP8, each 128 numbers have a scale.
Both bring BF16 back (github.com/deepseek-ai/DeepEP, README).
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from attrs import frozen

from ksim.compute.graph import Collective, CollectiveKind, Op
from ksim.compute.sizes import Sizes
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["Combine", "Dispatch"]

#: Numbers that share an FP32 scale when a token is sent in FP8.
SCALED = 128
LOW_LATENCY: Mapping[str, CollectiveKind] = {"dispatch": "low_latency_dispatch", "combine": "low_latency_combine"}


@frozen
class Dispatch:
    """Bring the tokens of all data ranks, of size `hidden`, to the experts; with one data rank, nothing."""

    label: str = "dispatch"
    hidden: str = "m"

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        if shard.data == 1:
            return
        if _deepep(shard):
            yield Op(self.label, _sent(sizes, shard, "dispatch", self.hidden))
        else:
            size = (sizes.volume(f"T{self.hidden}") + sizes.volume("TE")) * DType.BF16.bytes
            yield Op(self.label, Collective("all_gather", size, _group(shard)))


@frozen
class Combine:
    """Add up the experts' results of each token, of size `hidden`, and bring the sum back to its rank."""

    label: str = "experts"
    hidden: str = "m"

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        if shard.data > 1:
            if _deepep(shard):
                yield Op(f"{self.label}_combine", _sent(sizes, shard, "combine", self.hidden))
            else:
                size = sizes.volume(f"T{self.hidden}") * DType.BF16.bytes
                yield Op(f"{self.label}_reduce_scatter", Collective("reduce_scatter", size, _group(shard)))
        if shard.tensor > 1:
            kind: CollectiveKind = "all_gather" if shard.scattered else "all_reduce"
            size = sizes.volume(f"t{self.hidden}") * DType.BF16.bytes
            yield Op(f"{self.label}_{kind}", Collective(kind, size, "tensor"))


def _deepep(shard: Shard) -> bool:
    return shard.exchange.startswith("deepep")


def _group(shard: Shard) -> str:
    return "expert" if shard.scattered else "data"


def _sent(sizes: Sizes, shard: Shard, way: Literal["dispatch", "combine"], index: str) -> Collective:
    """The copies of one rank's tokens that it sends to their experts, or gets back from them."""
    ranks, top_k, hidden = shard.expert_ranks, sizes.of["top_k"], sizes.of[index]
    tokens = sizes.of["T"] / ranks
    token = hidden * DType.BF16.bytes
    if way == "dispatch" and shard.precision.of("experts")[1] is DType.FP8:
        token = hidden * DType.FP8.bytes + hidden / SCALED * DType.FP32.bytes
    if shard.exchange == "deepep_low_latency":
        return Collective(LOW_LATENCY[way], tokens * top_k * token, "expert")
    reached = ranks * (1 - (1 - 1 / ranks) ** top_k)  # the expected number of ranks with experts of one token
    return Collective(way, tokens * reached * token, "expert")
