"""Context parallelism: attention over tokens that ranks split, by Ulysses' exchange of heads or in a ring."""

from collections.abc import Iterator

from attrs import evolve, field, frozen
from attrs.validators import instance_of

from ksim.compute.graph import Collective, CollectiveKind, Op
from ksim.compute.kernels.attention import Attention
from ksim.compute.kernels.pointwise import Pointwise
from ksim.compute.notation.attention import FusedAttention
from ksim.compute.notation.pointwise import Elementwise
from ksim.compute.notation.product import Product
from ksim.compute.notation.splits import group_of
from ksim.compute.sizes import Sizes
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["Ring", "Ulysses", "ring", "ulysses"]

Inner = Product | FusedAttention | Elementwise


@frozen
class Ulysses:
    """`operations` over whole sequences and a part of the heads, between operations over a part of the tokens.

    Tensors from outside that have one of the `sequence` indices are split along it over the group `by`.  An all-to-all
    splits them along `heads` instead; those without heads are all-gathered.  Another all-to-all brings back the result
    of the last operation.  (DeepSpeed-Ulysses, arXiv 2309.14509.)
    """

    operations: tuple[Inner, ...]
    by: str = field(default="context", converter=group_of)
    sequence: str = "sz"
    heads: str = "K"
    label: str = "ulysses"

    def __attrs_post_init__(self) -> None:
        if not self.operations or not all(isinstance(operation, Inner) for operation in self.operations):
            raise ValueError("ulysses takes one or more of op, attend and pointwise, one after the other")
        for operation in self.operations:
            if self.heads not in operation.indices:
                raise operation.tensors.wrong(f"index {self.heads!r} of the heads, which ulysses splits, is not in it")
            if getattr(operation, "overlap_stage", 1) > 1:
                raise operation.tensors.wrong("overlap_stage has no meaning inside ulysses")
            if split := [index for index, group in operation.parallel if group == self.by]:
                raise operation.tensors.wrong(f"index {split[0]!r} is split by {self.by!r}, by which ulysses splits"
                                              f" heads")
        if self.heads not in self.operations[-1].tensors.results[0]:
            raise self.operations[-1].tensors.wrong(f"the result that leaves ulysses has no heads {self.heads!r}")

    @property
    def indices(self) -> str:
        return "".join(operation.indices for operation in self.operations)

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        for operation, tensor in self._incoming():
            yield from self._exchanged(operation, tensor, sizes, shard)
        for operation in self.operations:
            headed = evolve(operation, parallel=(*operation.parallel, (self.heads, self.by)))
            yield from headed.lower(sizes, shard)
        yield from self._exchanged(self.operations[-1], self.operations[-1].tensors.results[0], sizes, shard)

    def _incoming(self) -> Iterator[tuple[Inner, str]]:
        """The tensors that come from outside, with the operations that read them."""
        made: set[frozenset[str]] = set()
        for operation in self.operations:
            yield from ((operation, tensor) for tensor in operation.tensors.operands if frozenset(tensor) not in made)
            made |= {frozenset(tensor) for tensor in operation.tensors.results}

    def _exchanged(self, operation: Inner, tensor: str, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        split = [index for index in tensor if index in self.sequence]
        if shard.ranks(self.by) == 1 or not split:
            return
        name = f"{self.label}_{tensor}"
        whole = sizes.on(operation.parallel, shard, name)
        part = whole.on(((split[0], self.by),), shard, name)
        kind: CollectiveKind = "all_to_all" if self.heads in tensor else "all_gather"
        size = (part if self.heads in tensor else whole).volume(tensor) * DType.BF16.bytes
        yield Op(name, Collective(kind, size, self.by))


def ulysses(
    *operations: Inner, by: str = "context", sequence: str = "sz", heads: str = "K", label: str = "ulysses"
) -> Ulysses:
    """Run *operations* on whole sequences and a part of the heads: see `Ulysses`."""
    return Ulysses(operations, by, sequence, heads, label)


@frozen
class Ring:
    """`attention` in as many rounds as the group `by` has ranks, each over the keys and values of one rank.

    Every rank has a part of the queries and of the keys (Ring Attention, arXiv 2310.01889).  It passes the keys and
    values of a round on to the next rank, with `overlap` while it computes that round, and merges the rounds' results
    in FP32.  A causal sequence is cut into 2n pieces, and rank i has the pieces i and 2n - 1 - i, for equal work
    (Llama 3, arXiv 2407.21783, section 3.3.2).  The price is that of the last rank, whose queries all see half of every
    other rank's new keys.
    """

    attention: FusedAttention = field(validator=instance_of(FusedAttention))
    by: str = field(default="context", converter=group_of)
    overlap: bool = True

    def __attrs_post_init__(self) -> None:
        if self.attention.window:
            raise self.attention.tensors.wrong("a ring has no window")
        if split := [index for index, group in self.attention.parallel if group == self.by]:
            raise self.attention.tensors.wrong(f"index {split[0]!r} is split by {self.by!r}, as the ring's tokens are")

    @property
    def label(self) -> str:
        return self.attention.label

    @property
    def indices(self) -> str:
        return self.attention.indices

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        inner, rounds = self.attention, shard.ranks(self.by)
        split = (*inner.parallel, (inner.queries, self.by), (inner.keys, self.by))
        local = sizes.on(split, shard, self.label)
        block = Op(self.label, inner.kernel(local, shard))
        yield block
        if rounds == 1:
            return
        size = 2 * local.volume(inner.tensors.operands[1]) * (inner.cache or shard.precision.cache).bytes
        other, merge = Op(self.label, self._other(local, shard)), self._merge(local)
        for _ in range(rounds - 1):
            yield Op(f"{self.label}_shift", Collective("shift", size, self.by), beside=block if self.overlap else None)
            block = other
            yield from (block, merge)

    def _other(self, local: Sizes, shard: Shard) -> Attention:
        """One round over the keys and values of another rank."""
        inner = self.attention
        new, seen = local.of[inner.queries], local.of[inner.keys]
        if not inner.causal:
            return inner.block(local, shard, new, seen, new * seen)
        if new % 2:
            raise ConfigError(self.label, f"index {inner.queries!r} leaves {new} causal tokens a rank, which do not"
                                          f" divide into two pieces")
        context = seen - new
        return inner.block(local, shard, new, context + new // 2, new * context + new * new // 2)

    def _merge(self, local: Sizes) -> Op:
        query = self.attention.tensors.operands[0]
        values = float(local.volume(query))
        rows = local.volume(index for index in query
                            if index in self.attention.sequences or index == self.attention.queries)
        read = values * (DType.FP32.bytes + DType.BF16.bytes)
        return Op(f"{self.label}_merge", Pointwise("merge", read, values * DType.FP32.bytes, 2 * values, rows))


ring = Ring
