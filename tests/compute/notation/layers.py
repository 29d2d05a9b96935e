"""What the tests of notations share: the sizes of a layer, and what is launched for it."""

from collections.abc import Sequence
from typing import Any

from ksim.compute.graph import Collective, Op
from ksim.compute.notation.communicate import LayerOperation, lower

#: Llama 3.1 70B's, for a prompt of 4,096 tokens, and 16 experts with 512 pairs of tokens each.
SIZES = {"b": 1, "s": 4096, "z": 4096, "m": 8192, "K": 8, "r": 8, "i": 10, "h": 128, "F": 28672, "g": 2,
         "E": 16, "T": 512, "f": 1024}


def tasks(operation: LayerOperation, sizes: dict[str, int] | None = None, **ranks: int) -> Sequence[Op]:
    return lower(operation, {**SIZES, **(sizes or {})}, {"tensor": 1, "context": 1, "expert": 1, **ranks})


def launched(operation: LayerOperation, sizes: dict[str, int] | None = None, **ranks: int) -> list[tuple[str, Any]]:
    return [(task.label, task.kernel) for task in tasks(operation, sizes, **ranks)]


def flops(operation: LayerOperation, sizes: dict[str, int] | None = None, **ranks: int) -> float:
    """FLOP of one rank."""
    return sum(task.kernel.work.flops for task in tasks(operation, sizes, **ranks)
               if not isinstance(task.kernel, Collective))
