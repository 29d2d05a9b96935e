"""Fused attention: scores, softmax and the weighted sum of values in one kernel, which writes no scores to memory.

With context parallelism, ranks split the tokens, and exchange heads (Ulysses) or pass keys on in a ring.  In attention
within chunks of a context, no query sees a token of an earlier chunk (Llama 4).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve, field, frozen
from attrs.converters import optional
from attrs.validators import ge, instance_of

from ksim.compute.graph import Collective, CollectiveKind, Op
from ksim.compute.kernels.attention import Attention, AttentionLayer
from ksim.compute.kernels.basic import Pointwise
from ksim.compute.notation import number_format
from ksim.compute.notation.communicate import check, group_of, splits
from ksim.compute.notation.pointwise import Elementwise
from ksim.compute.notation.product import Product
from ksim.compute.sizes import Equation, Sizes, Splits, parse
from ksim.flow.batch import Batch, Batches, Contexts
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["ChunkedLayer", "FusedAttention", "attend", "Ring", "Ulysses", "ring", "ulysses"]


@frozen
class ChunkedLayer(AttentionLayer):
    """Attention within chunks of `chunk` tokens, in one kernel.

    The kernel sees a sequence of its own in each chunk that new tokens are of, as vLLM's does
    (vllm/v1/attention/backends/utils.py, `make_local_attention_virtual_batches`).
    """

    chunk: int = field(default=1, validator=ge(1), kw_only=True)

    def counts(self, batch: Batch) -> tuple[int, ...]:
        """Its `COUNTS` over *batch* cut into chunks."""
        local = [context % self.chunk for context in batch.contexts]
        fits = batch.width == 1 or max(local, default=0) + batch.width <= self.chunk
        whole = [] if fits else [(batch.width, context) for context in batch.contexts]
        parts = tuple(part for new, context in (*batch.chunks, *whole) for part in self._parts(new, context))
        contexts = Contexts(local) if fits else Contexts()
        return super().counts(Batch(contexts, parts, batch.samples, batch.tokens, width=batch.width))

    def _parts(self, new: int, context: int) -> Iterator[tuple[int, int]]:
        """The (new, context) pairs of each chunk of a sequence that begins with *context* tokens."""
        before = context % self.chunk
        while new > 0:
            part = min(new, self.chunk - before)
            yield part, before
            new, before = new - part, 0

    def columns(self, batches: Batches) -> Sequence[Any]:
        return self._one_by_one(batches)


@frozen
class FusedAttention:
    """``attend("bKrsh,bKzh,bKzh->bKrsh", parallel="K")``: queries, keys and values to outputs shaped like the queries.

    The last index of each tensor is the head dimension.  The index that only keys have counts keys; `sequences` and
    `queries` name the indices of these.  Of the others, those that keys have count KV heads, and those that they lack
    query heads that share a KV head.  Keys include the new tokens, as the last ones: a `causal` query sees the keys up
    to its own token, or the last `window` of these (0: all).  Keys and values are read in the format `cache`; None is
    the deployment's.

    If sizes say nothing of keys, they belong to a ragged batch, as in models, and the batch decides the kernel.  With
    `sinks`, each head has a weight that takes part in its softmax.  A `chunked` batch is cut into chunks of `window`
    tokens, and queries see those of their own.  A layer that does not keep keys of its `own` reads those of an earlier
    layer, and has no cache.
    """

    equation: str
    parallel: Splits = field(default=(), converter=splits)
    label: str = "attention"
    causal: bool = field(default=True, kw_only=True)
    window: int = field(default=0, validator=ge(0), kw_only=True)
    cache: DType | None = field(default=DType.BF16, converter=optional(number_format), kw_only=True)
    sequences: str = field(default="b", kw_only=True)
    queries: str = field(default="s", kw_only=True)
    sinks: bool = field(default=False, kw_only=True)
    chunked: bool = field(default=False, kw_only=True)
    own: bool = field(default=True, kw_only=True)

    def __attrs_post_init__(self) -> None:
        read = self.tensors.of(3)
        check(read, self.parallel, read.indices, "parallel")
        query, key, value = map(set, read.operands)
        if key != value or query != {*read.results[0]}:
            raise read.wrong("expected keys and values alike, and a result with the indices of the queries")
        if len({tensor[-1] for tensor in read.tensors}) > 1:
            raise read.wrong(f"expected all tensors to end in one index, the head's dimension, not in"
                             f" {', '.join(tensor[-1] for tensor in read.tensors)}")
        if len(key - query) != 1:
            raise read.wrong(f"expected one index that keys have and queries lack, not {len(key - query)}")
        if self.queries not in query or self.queries in key:
            raise read.wrong(f"index {self.queries!r} of the queries must be in the queries and not in the keys")
        self._check_splits(read)
        if self.window and not self.causal:
            raise read.wrong("a window looks back; without causal there is none")

    def _check_splits(self, read: Equation) -> None:
        for index, group in self.parallel:
            if index in (self.queries, self.keys, read.results[0][-1]):
                raise read.wrong(f"parallel index {index!r} is not one of heads or sequences; to split tokens, wrap it"
                                 f" in ring(...) or ulysses(...), by={group!r}")

    @property
    def tensors(self) -> Equation:
        return parse(self.equation)

    @property
    def indices(self) -> str:
        return self.tensors.indices

    @property
    def attends(self) -> str:
        reach = "chunks" if self.chunked else "sliding window"
        return f"{reach} of {self.window}" if self.window else "full attention"

    @property
    def keys(self) -> str:
        query, key, _ = self.tensors.operands
        return next(index for index in key if index not in query)

    @property
    def _heads(self) -> list[str]:
        """The indices that count query heads."""
        return [index for index in self.tensors.operands[0][:-1] if index not in (*self.sequences, self.queries)]

    def parameters(self, sizes: Sizes) -> int:
        return self.sinks * sizes.volume(self._heads)

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.on(self.parallel, shard, self.label)) * DType.BF16.bytes

    def cache_per_token(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of a key and a value on one rank; windows save none, as in vLLM's uniform pool."""
        if not self.own:
            return 0.0
        layer = self._layer(sizes.on(self.parallel, shard, self.label), shard)
        return 2 * layer.kv_heads * layer.head_dim * layer.cache.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.on(self.parallel, shard, self.label)
        yield Op(self.label, self.kernel(local, shard) if self.keys in local.of else self._layer(local, shard))

    def kernel(self, local: Sizes, shard: Shard) -> Attention:
        """All queries over all keys; raises ConfigError where causal queries are more than keys."""
        new, seen = local.of[self.queries], local.of[self.keys]
        if not self.causal:
            return self.block(local, shard, new, seen, new * seen)
        if new > seen:
            raise ConfigError(self.label, f"index {self.keys!r} has size {seen} and {self.queries!r} {new}, but keys"
                                          f" include those of the new tokens")
        return self._layer(local, shard).over(Batch.of(*[(new, seen - new)] * self._sequences(local)))

    def block(self, local: Sizes, shard: Shard, new: int, seen: int, pairs: int) -> Attention:
        """*new* queries a sequence over *seen* keys, in *pairs* pairs."""
        count = self._sequences(local)
        return self._layer(local, shard).kernel((0, 0, 0, count, count * new, count * seen, count * pairs,
                                                 count * new * seen, new, seen))

    def _sequences(self, local: Sizes) -> int:
        return local.volume(index for index in self.sequences if index in self.tensors.operands[1])

    def _layer(self, local: Sizes, shard: Shard) -> AttentionLayer:
        query, key, _ = self.tensors.operands
        heads, kv_heads = (local.volume(index for index in self._heads if index in tensor) for tensor in (query, key))
        size, cache = local.of[query[-1]], self.cache or shard.precision.cache
        if self.chunked:
            return ChunkedLayer(heads, kv_heads, size, 0, cache, chunk=self.window)
        return AttentionLayer(heads, kv_heads, size, self.window, cache)


attend = FusedAttention


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
