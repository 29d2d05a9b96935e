"""Fused attention: scores, softmax and the weighted sum of values in one kernel, which writes no scores to memory."""

from collections.abc import Iterator

from attrs import field, frozen
from attrs.converters import optional
from attrs.validators import ge

from ksim.compute.chunked_attention import ChunkedLayer
from ksim.compute.equation import Equation, parse
from ksim.compute.graph import Op
from ksim.compute.kernels.attention import Attention, AttentionLayer
from ksim.compute.notation import number_format
from ksim.compute.notation.splits import check, splits
from ksim.compute.sizes import Sizes, Splits
from ksim.flow.batch import Batch
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["FusedAttention", "attend"]


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
