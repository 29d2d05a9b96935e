"""The one notation of layers: operations over the indices of tensors, and what one rank launches for each.

Users write operations with `ksim.op`, `attend`, `pointwise`, `communicate`, `ring` and `ulysses`, over letters of their
own (docs/einsum.md); architectures with the functions of `ksim.compute.model_ops`, over the letters of
`ksim.compute.sizes`.  Both make the same classes: `Product`, `FusedAttention`, `Elementwise`, `Communicate`.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from ksim.compute.graph import LayerCache, Op
from ksim.compute.sizes import Sizes
from ksim.foundation.units import DType
from ksim.specs.shard import Shard


class Operation(Protocol):
    """An operation of a layer."""

    @property
    def label(self) -> str: ...

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        """The launches of one rank; raises ConfigError for an index that cannot be split over so many ranks."""
        ...


@runtime_checkable
class Weighted(Protocol):
    """An operation that has weights."""

    def parameters(self, sizes: Sizes) -> int:
        """The number of weights that the whole model has here."""
        ...

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of weights that one rank holds."""
        ...


@runtime_checkable
class Cached(Protocol):
    """An operation that keeps something of every token.

    One that sees only the last tokens has a `window` of so many.  If it is `chunked` too, it sees the tokens of its
    own chunk of so many.
    """

    def cache_per_token(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of KV cache that one token takes on one rank."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """An operation that keeps something of every sequence, however long it is.

    One whose kernels can keep the state amid a prompt has a `checkpoint`: after each so many tokens.
    """

    def state_per_sequence(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes that one sequence takes on one rank."""
        ...


def weighted(operations: Iterable[Any]) -> Iterator[Weighted]:
    """The *operations* that have weights; to ask the protocol would take much longer."""
    return (operation for operation in operations if hasattr(operation, "weights"))


def cached(operations: Iterable[Any]) -> Iterator[Cached]:
    """The *operations* that keep something of every token."""
    return (operation for operation in operations if hasattr(operation, "cache_per_token"))


def stateful(operations: Iterable[Any]) -> Iterator[Stateful]:
    """The *operations* that keep something of every sequence."""
    return (operation for operation in operations if hasattr(operation, "state_per_sequence"))


def layer_cache(operation: Any, sizes: Sizes, shard: Shard) -> LayerCache | None:
    """The cache of *operation* on one rank; None if it keeps nothing."""
    if hasattr(operation, "state_per_sequence"):
        return LayerCache(sequence_bytes=operation.state_per_sequence(sizes, shard),
                          checkpoint=getattr(operation, "checkpoint", 0))
    if not hasattr(operation, "cache_per_token") or not (token := operation.cache_per_token(sizes, shard)):
        return None
    reach, chunked = getattr(operation, "window", 0), getattr(operation, "chunked", False)
    return LayerCache(token, window=0 if chunked else reach, chunk=reach if chunked else 0,
                      block_tokens=getattr(operation, "block_tokens", 0))


def number_format(written: str | DType) -> DType:
    """The format called *written*, such as "fp8"; raises ValueError for any other."""
    return written if isinstance(written, DType) else DType.named(written)
