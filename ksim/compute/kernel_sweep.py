"""Many kernels of one class as columns, so that they are counted and priced together."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import repeat, starmap
from typing import Any, overload

import numpy as np
from attrs import fields, frozen
from numpy.typing import ArrayLike, NDArray

from ksim.compute.kernels import Kernel

__all__ = ["KernelSweep"]


@frozen(eq=False)
class KernelSweep(Sequence[Kernel]):
    """Kernels of one class that differ in their numbers alone; as a sequence, it makes them one by one.

    `kernel` is a single object whose numbers are columns of (kernels,), and so is its `work`.  A number that all
    kernels share may stay a number, but one at least is a column.

    Kernels may also differ in their family, as those that only move memory do: then `families` lists the names, and
    `codes` has the place of each kernel's among them.
    """

    kernel: Any
    families: Sequence[str]
    codes: NDArray[np.intp] | None = None

    @classmethod
    def of(cls, kernel: Any) -> "KernelSweep":
        """Kernels of one family."""
        return cls(kernel, (kernel.family,))

    def __len__(self) -> int:
        if self.codes is not None:
            return len(self.codes)
        values = (getattr(self.kernel, one.name) for one in fields(type(self.kernel)))
        return next(len(value) for value in values if isinstance(value, np.ndarray))

    @overload
    def __getitem__(self, row: int) -> Kernel: ...

    @overload
    def __getitem__(self, row: slice) -> list[Kernel]: ...

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [*self][row]
        return type(self.kernel)(*[value.item(row) if isinstance(value, np.ndarray) else value
                                   for value in self._values])

    def __iter__(self) -> Iterator[Kernel]:
        columns = [value.tolist() if isinstance(value, np.ndarray) else repeat(value, len(self))
                   for value in self._values]
        return starmap(type(self.kernel), zip(*columns, strict=True))

    def shapes(self) -> list[str]:
        """How each kernel prints."""
        return list(map(str, self))

    def spread(self, by_family: ArrayLike) -> NDArray[Any]:
        """What is known *by_family*, for each kernel: (kernels,)."""
        values = np.asarray(by_family)
        return np.broadcast_to(values[0], len(self)) if self.codes is None else values[self.codes]

    @cached_property
    def _values(self) -> list[Any]:
        """The kernel's fields in order, with a column of families where there are several."""
        families = None if self.codes is None else np.asarray(self.families)[self.codes]
        return [families if one.name == "family" and families is not None else getattr(self.kernel, one.name)
                for one in fields(type(self.kernel))]
