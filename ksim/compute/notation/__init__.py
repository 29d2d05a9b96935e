"""Layers as a user writes them: operations over indices of the user's own, and what one rank launches for each.

`op` is a product, `attend` fused attention, `pointwise` what only moves memory, `communicate` a collective that nothing
implies; `ulysses` and `ring` split the tokens of attention over the ranks of a group.  docs/einsum.md tells all of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from attrs import frozen

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.sizes import Sizes
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType


@frozen
class Task:
    """One launch of one rank; it runs `beside` another where that keeps the GPU busy meanwhile."""

    label: str
    kernel: Kernel | Collective
    beside: "Task | None" = None


class Operation(Protocol):
    """One line of a layer."""

    @property
    def label(self) -> str: ...

    @property
    def indices(self) -> str:
        """Those that need a size."""
        ...

    def lower(self, sizes: Sizes, ranks: Mapping[str, int]) -> Iterator[Task]:
        """What one rank launches where groups have so many *ranks*; raises ConfigError for what does not divide."""
        ...


def number_format(written: str | DType) -> DType:
    """The format called *written*, such as "fp8"; raises ValueError for any other."""
    return written if isinstance(written, DType) else DType.named(written)


def lower(operation: Operation, sizes: Sizes, ranks: Mapping[str, int]) -> Sequence[Task]:
    """What one rank launches for *operation*; raises ConfigError for an index without a size too."""
    if unknown := [index for index in operation.indices if index not in sizes.of]:
        raise ConfigError(operation.label, f"index {unknown[0]!r} has no size; sizes has {', '.join(sizes.of)}")
    return list(operation.lower(sizes, ranks))
