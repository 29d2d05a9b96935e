"""Fused attention: scores, softmax and the weighted sum of values in one kernel, which writes no scores to memory."""

from collections.abc import Iterator, Mapping

from attrs import field, frozen
from attrs.validators import ge

from ksim.compute.equation import Equation, parse
from ksim.compute.kernels.attention import Attention, AttentionLayer
from ksim.compute.notation import Task, number_format
from ksim.compute.notation.splits import Splits, check, share, splits
from ksim.compute.sizes import Sizes
from ksim.flow.batch import Batch
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType

__all__ = ["FusedAttention", "attend"]


@frozen
class FusedAttention:
    """``attend("bKrsh,bKzh,bKzh->bKrsh", parallel="K")``: queries, keys and values to outputs shaped like the queries.

    The last index of each is the head's dimension; what queries lack is the keys' index; `sequences` and `queries` name
    theirs.  Of the others, those that keys have count KV heads, and those that they lack query heads that share one.
    Keys include the new tokens, which are the last of them: a `causal` query sees those up to its own, or the `window`
    last of these (0 means all).  Keys and values are read in the format `cache`.
    """

    equation: str
    parallel: Splits = field(default=(), converter=splits)
    label: str = "attention"
    causal: bool = field(default=True, kw_only=True)
    window: int = field(default=0, validator=ge(0), kw_only=True)
    cache: DType = field(default=DType.BF16, converter=number_format, kw_only=True)
    sequences: str = field(default="b", kw_only=True)
    queries: str = field(default="s", kw_only=True)

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

    def lower(self, sizes: Sizes, ranks: Mapping[str, int]) -> Iterator[Task]:
        yield Task(self.label, self.kernel(share(sizes, self.parallel, ranks, self.label)))

    def kernel(self, local: Sizes) -> Attention:
        """All queries over all keys of *local*; raises ConfigError where causal ones are more than the keys."""
        new, seen = local.of[self.queries], local.of[self.keys]
        if not self.causal:
            return self.block(local, new, seen, new * seen)
        if new > seen:
            raise ConfigError(self.label, f"index {self.keys!r} has size {seen} and {self.queries!r} {new}, but keys"
                                          f" include those of the new tokens")
        return self._layer(local).over(Batch.of(*[(new, seen - new)] * self._sequences(local)))

    def block(self, local: Sizes, new: int, seen: int, pairs: int) -> Attention:
        """*new* queries a sequence over *seen* keys, of which *pairs* meet."""
        layer, count = self._layer(local), self._sequences(local)
        return Attention(0, 0, 0, count, count * new, count * seen, count * pairs, count * new * seen, new, seen,
                         layer.heads, layer.kv_heads, layer.head_dim, self.cache)

    def _sequences(self, local: Sizes) -> int:
        return local.volume(index for index in self.sequences if index in self.tensors.operands[1])

    def _layer(self, local: Sizes) -> AttentionLayer:
        query, key, _ = self.tensors.operands
        heads = [index for index in query[:-1] if index not in (*self.sequences, self.queries)]
        return AttentionLayer(local.volume(heads), local.volume(index for index in heads if index in key),
                              local.of[query[-1]], self.window, self.cache)


attend = FusedAttention
