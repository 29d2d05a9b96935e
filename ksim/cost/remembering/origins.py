"""What prices follow from: the code that makes them, the processor's arithmetic, an oracle's data, a GPU, a kernel."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from attrs import fields
from numpy.typing import NDArray

from ksim.compute.kernels import Kernel
from ksim.foundation.units import DType
from ksim.oracles.efficiency.products import times
from ksim.oracles.efficiency.several import Several
from ksim.specs.hardware import Gpu

__all__ = ["code", "of_kernel", "of_kinds", "of_oracle", "of_sizes", "sources"]

#: Bytes of what stands for an origin.
BYTES = 16
#: Modules of ksim that have a part in prices.
MODULES = ("foundation/*.py", "specs/*.py", "flow/*.py", "compute/*.py", "compute/kernels/*.py", "cost/answers.py",
           "cost/counted.py", "cost/efficiency/*.py", "cost/oracles/*.py", "cost/remembering/*.py")


def sources() -> list[Path]:
    """The modules that have a part in prices, and some that have none."""
    root = Path(__file__).parents[2]
    return [path for pattern in MODULES for path in sorted(root.glob(pattern))]


@cache
def code() -> str:
    """Stands for ksim's code, to the last letter, and for what this processor and numpy make of numbers.

    Raises OSError where the code is in no files.
    """
    paths = sources()
    if not paths:
        raise FileNotFoundError("ksim's modules are no files")
    return _digest([np.__version__.encode(), _arithmetic(), *(path.read_bytes() for path in paths)]).hex()


def _arithmetic() -> bytes:
    """The bits of functions and products that libraries work out in several ways, as it suits the processor."""
    numbers = np.linspace(0.01, 40.0, 1003)
    rows, matrix = numbers[:72].reshape(4, 18), np.resize(numbers, (18, 1872))
    products = times(rows, matrix)
    found = (np.exp(-numbers), np.log(numbers), np.log2(numbers), np.tanh(numbers), numbers**1.37, numbers**-0.3,
             products, times(products, matrix[0]))
    return b"".join(each.tobytes() for each in found)


def of_oracle(oracle: Any, gpu: Gpu) -> bytes:
    """Stands for *oracle*, which has a `basis`, and for the numbers of *gpu*."""
    kind = type(oracle)
    return _digest([f"{kind.__module__}:{kind.__qualname__}".encode(), repr(gpu).encode(), *oracle.basis(gpu)])


def of_kernel(origin: bytes, kernel: Kernel) -> bytes:
    """Stands for *kernel* where oracle and GPU are of this *origin*."""
    return blake2b(origin + repr((type(kernel).__name__, _said(kernel))).encode(), digest_size=BYTES).digest()


def of_kinds(origin: bytes, kinds: Sequence[Kernel]) -> bytes:
    """Stands for *kinds* of kernels, but for the numbers of which `Several` has columns."""
    return _digest([origin, *(repr((type(kind).__name__, _said(kind))).encode() for kind in kinds)])


def of_sizes(origin: bytes, kernels: Several) -> list[bytes]:
    """Stand for all kinds of *kernels*, together, at each of their sizes, where the kinds are of this *origin*."""
    kind: type = type(kernels.kernel)
    named = [(name, column) for name in _names(kind)
             if isinstance(column := getattr(kernels.kernel, name), np.ndarray)]
    formats = ",".join([name + column.dtype.str for name, column in named])
    alike = blake2b(origin + formats.encode(), digest_size=BYTES)
    rows = np.concatenate([_bytes(column.reshape(-1, kernels.sizes).T) for _, column in named], axis=1)
    return [_continued(alike, row) for row in rows]


def _bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """What each of *rows* has, side by side."""
    return np.ascontiguousarray(rows).view(np.uint8)


def _continued(begun: Any, rest: NDArray[np.uint8]) -> bytes:
    whole = begun.copy()
    whole.update(rest)
    return bytes(whole.digest())


def _said(kernel: Kernel) -> list[Any]:
    """The family and all fields of *kernel*."""
    return [value.label if type(value) is DType else value for value in _values(type(kernel))(kernel)]


@cache
def _values(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """What gets the family and all fields of a kernel of this *kind*."""
    return attrgetter("family", *_names(kind))


@cache
def _names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def _digest(parts: Iterable[bytes]) -> bytes:
    """Stands for *parts*, however they are cut."""
    whole = blake2b(digest_size=BYTES)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()
