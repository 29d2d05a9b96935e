"""Collectives that no product implies, and the exchange of tokens with experts on other data-parallel ranks.

With `allgather_reducescatter`, vLLM's default, every rank gets all tokens with their router logits, and a
reduce-scatter brings the sums back: over the data ranks or, where tensor-parallel ranks first divide their tokens, over
all ranks that share the experts (vLLM, distributed/device_communicators/all2all.py, `AgRsAll2AllManager`;
config/parallel.py, `use_sequence_parallel_moe`).  DeepEP sends tokens only where they are needed: its low-latency
kernels send a copy to each expert, its high-throughput ones a copy to each rank, of which one passes between two nodes;
in FP8, each 128 numbers have a scale.  Both bring BF16 back (github.com/deepseek-ai/DeepEP, docs/legacy.md).  So a rank
quantizes its own tokens alone, before it sends them.  Low-latency kernels lay them out by experts and add up their
results; beside the others, kernels of a rank's own do (SGLang, layers/moe/ep_moe/kernels.py, ep_scatter and ep_gather;
vLLM, fused_moe/deep_gemm_utils.py and topk_weight_and_reduce.py).

In a user's own layer, groups of ranks split indices: `lower` makes the launches of one rank.
"""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Literal, Protocol

from attrs import evolve, field, frozen
from attrs.validators import in_

from ksim.compute.graph import Collective, CollectiveKind, Fanout, Op
from ksim.compute.kernels.basic import Pointwise
from ksim.compute.notation import Operation, number_format
from ksim.compute.sizes import Equation, Sizes, Splits, parse
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["Communicate", "Send", "communicate", "GROUPS", "Groups", "LayerSizes", "LayerOperation", "lower", "splits",
           "group_of", "check", "Combine", "Dispatch", "sends", "held", "SENT", "RECEIVED"]


#: The groups that a system's GPUs form, from the innermost: neighbours are of one tensor group.
GROUPS = ("tensor", "context", "expert")
#: As users write splits: "K", which stands for {"K": "tensor"}.
Written = str | Mapping[str, str] | Splits


@frozen
class Groups(Shard):
    """The ranks of a user's layer: tensor groups as in models, and groups that split context and experts."""

    context: int = 1
    expert: int = 1


@frozen
class LayerSizes(Sizes):
    """The sizes of a user's layer: its letters have no fixed meaning, and every size must divide over its ranks."""

    def on(self, splits: Splits, shard: Shard, label: str = "") -> Sizes:
        """The sizes on one rank; raises ConfigError that names *label* for one that does not divide."""
        local = dict(self.of)
        for index, group in splits:
            ranks = shard.ranks(group)
            if local[index] % ranks:
                raise ConfigError(label, f"index {index!r} has size {local[index]}, which does not divide over"
                                         f" {ranks} ranks (group {group!r})")
            local[index] //= ranks
        return LayerSizes(local)


class LayerOperation(Operation, Protocol):
    """An operation that a user writes."""

    @property
    def indices(self) -> str:
        """The indices that need a size."""
        ...


def lower(operation: LayerOperation, sizes: Mapping[str, int], ranks: Mapping[str, int]) -> list[Op]:
    """The launches of one rank, given the *ranks* of each group; raises ConfigError for an index without a size."""
    if unknown := [index for index in operation.indices if index not in sizes]:
        raise ConfigError(operation.label, f"index {unknown[0]!r} has no size; sizes has {', '.join(sizes)}")
    groups = Groups(tensor=ranks["tensor"], context=ranks["context"], expert=ranks["expert"])
    return list(operation.lower(LayerSizes(sizes), groups))


def splits(written: Written) -> Splits:
    """The pairs that *written* stands for; raises ValueError for what is no index or no group."""
    if isinstance(written, str):
        written = {written: "tensor"} if written else {}
    pairs = tuple(written.items()) if isinstance(written, Mapping) else tuple(written)
    for index, group in pairs:
        if len(index) != 1:
            raise ValueError(f"{index!r} is not one index; of several, say which group splits each:"
                             f" {{'K': 'tensor', 's': 'context'}}")
        group_of(group)
    return pairs


def group_of(name: str) -> str:
    """*name*; raises ValueError where it is none of `GROUPS`."""
    if name not in GROUPS:
        raise ValueError(f"{name!r} is no group of ranks ({', '.join(GROUPS)})")
    return name


def check(equation: Equation, pairs: Splits, indices: str, word: str) -> None:
    """Raise ValueError for a split index that is not one of *indices*; *word* is the argument that it is from."""
    for index, _ in pairs:
        if index not in indices:
            raise equation.wrong(f"{word} index {index!r} is not one of {', '.join(indices)}")


KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "shift")


@frozen
class Communicate:
    """A collective over the group `by`, such as ``communicate("all_to_all", "ETm", by="expert", parallel=...)``.

    `tensor` lists the indices of what is sent, and `parallel` says how they are split.  It is the whole result of an
    all_gather or all_reduce, the whole input of a reduce_scatter, and what one rank holds for the others.
    """

    kind: CollectiveKind = field(validator=in_(KINDS))
    tensor: str
    by: str = field(default="tensor", converter=group_of)
    parallel: Splits = field(default=(), converter=splits)
    label: str = field()
    format: DType = field(default=DType.BF16, converter=number_format, kw_only=True)

    @label.default
    def _kind(self) -> str:
        return self.kind

    def __attrs_post_init__(self) -> None:
        read = parse(f"{self.tensor}->{self.tensor}").of(1)
        check(read, self.parallel, self.tensor, "parallel")

    @property
    def indices(self) -> str:
        return self.tensor

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        size = sizes.on(self.parallel, shard, self.label).volume(self.tensor) * self.format.bytes
        if size and shard.ranks(self.by) > 1:
            yield Op(self.label, Collective(self.kind, size, self.by))


@frozen
class Send:
    """The message from one pipeline stage to the next: each rank sends a slice of `tensor`, in BF16, to its peer."""

    tensor: str
    label: str

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        size = sizes.volume(self.tensor) * DType.BF16.bytes
        yield Op(self.label, Collective("send", size / shard.tensor, "pipeline"))


communicate = Communicate


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
        if sends(shard):
            yield Op(self.label, _sent(sizes, shard, "dispatch", self.hidden))
            yield from self._laid_out(sizes, shard)
        else:
            size = (sizes.volume(f"T{self.hidden}") + sizes.volume("TE")) * DType.BF16.bytes
            yield Op(self.label, Collective("all_gather", size, _group(shard)))

    def _laid_out(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        """The kernel that copies received tokens to the rows of their experts; low-latency kernels do that themselves.
        """
        if received := held(sizes, shard, RECEIVED).of["T"]:
            token = _token(sizes, shard, "dispatch", self.hidden)
            yield Op(f"{self.label}_permute", Pointwise("copy", received * token, sizes.of["x"] * token, 0.0, received))


@frozen
class Combine:
    """Add up the experts' results of each token, of size `hidden`, and bring the sum back to its rank."""

    label: str = "experts"
    hidden: str = "m"

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        if shard.data > 1:
            if sends(shard):
                yield Op(f"{self.label}_combine", _sent(sizes, shard, "combine", self.hidden))
            else:
                size = sizes.volume(f"T{self.hidden}") * DType.BF16.bytes
                yield Op(f"{self.label}_reduce_scatter", Collective("reduce_scatter", size, _group(shard)))
        if shard.tensor > 1:
            kind: CollectiveKind = "all_gather" if shard.scattered else "all_reduce"
            size = sizes.volume(f"t{self.hidden}") * DType.BF16.bytes
            yield Op(f"{self.label}_{kind}", Collective(kind, size, "tensor"))


def sends(shard: Shard) -> bool:
    """Whether ranks send their tokens only where experts need them, and thus do not all have all of them."""
    return shard.data > 1 and shard.exchange.startswith("deepep")


#: Tokens of one rank: its own, which it sends, and those that it has received.
SENT, RECEIVED = "sent", "received"


def held(sizes: Sizes, shard: Shard, which: str) -> Sizes:
    """*sizes* where T counts the tokens *which* (`SENT` or `RECEIVED`) a rank has; it has all where it does not send.

    Of received ones it counts those to lay out and to add up: none where low-latency kernels do that.
    """
    if not which or not sends(shard):
        return sizes
    own = ceil(sizes.of["T"] / shard.expert_ranks)
    if which == SENT:
        return evolve(sizes, of={**sizes.of, "T": own})
    copies = _fanout(sizes, shard).reached(shard.expert_ranks) / sizes.of["top_k"]  # of a token for one of a pair
    received = 0 if shard.exchange == "deepep_low_latency" else ceil(sizes.of["x"] * copies)
    return evolve(sizes, of={**sizes.of, "T": received})


def _group(shard: Shard) -> str:
    return "expert" if shard.scattered else "data"


def _sent(sizes: Sizes, shard: Shard, way: Literal["dispatch", "combine"], index: str) -> Collective:
    """The copies of one rank's tokens that it sends to their experts, or gets back from them."""
    sent = sizes.of["T"] / shard.expert_ranks * _token(sizes, shard, way, index)
    if shard.exchange == "deepep_low_latency":
        return Collective(LOW_LATENCY[way], sent * sizes.of["top_k"], "expert")
    fanout = _fanout(sizes, shard)
    return Collective(way, sent * fanout.reached(shard.expert_ranks), "expert", fanout=fanout)


def _token(sizes: Sizes, shard: Shard, way: str, index: str) -> float:
    """The bytes of one token on its way."""
    hidden, format_ = sizes.of[index], shard.precision.of("experts")[1]
    if way == "dispatch" and format_ is DType.NVFP4 and shard.nvfp4_dispatch:
        return hidden * DType.NVFP4.bytes
    if way == "dispatch" and format_ is DType.FP8:
        return hidden * DType.FP8.bytes + hidden / SCALED * DType.FP32.bytes
    return hidden * DType.BF16.bytes


def _fanout(sizes: Sizes, shard: Shard) -> Fanout:
    """Where a token's experts are; EPLB copies and moves them wherever there is room, out of their groups."""
    grouped = (sizes.of.get("groups", 1), sizes.of.get("chosen", 1)) if shard.placement.strategy == "linear" else ()
    return Fanout(sizes.of["top_k"], *grouped)
