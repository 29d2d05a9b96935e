"""What operations keep in memory from step to step: of every token, or of every sequence."""

from typing import Protocol, runtime_checkable

from ksim.compute.sizes import Sizes
from ksim.specs.deployment import Shard


@runtime_checkable
class Cached(Protocol):
    """An operation that keeps something of every token."""

    def cache_per_token(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of KV cache that one token takes on one rank."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """An operation that keeps something of every sequence, however long it is."""

    def state_per_sequence(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes that one sequence takes on one rank."""
        ...
