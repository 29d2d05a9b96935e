"""Many kernels of one class as columns, so that they are counted and priced together."""

from collections.abc import Iterator, Sequence
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
        return next(len(value) for value in self._values() if isinstance(value, np.ndarray))

    @overload
    def __getitem__(self, row: int) -> Kernel: ...

    @overload
    def __getitem__(self, row: slice) -> list[Kernel]: ...

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [*self][row]
        kernel: Kernel = type(self.kernel)(*[value[row].item() if isinstance(value, np.ndarray) else value
                                             for value in self._values(self._family_of(row))])
        return kernel

    def __iter__(self) -> Iterator[Kernel]:
        families = np.asarray(self.families)[self.codes] if self.codes is not None else None
        columns = (value.tolist() if isinstance(value, np.ndarray) else repeat(value, len(self))
                   for value in self._values(families))
        return starmap(type(self.kernel), zip(*columns, strict=True))

    def shapes(self) -> list[str]:
        """How each kernel prints."""
        return list(map(str, self))

    def spread(self, by_family: ArrayLike) -> NDArray[Any]:
        """What is known *by_family*, for each kernel: (kernels,)."""
        values = np.asarray(by_family)
        return np.broadcast_to(values[0], len(self)) if self.codes is None else values[self.codes]

    def _family_of(self, row: int) -> Any:
        return self.families[self.codes[row]] if self.codes is not None else None

    def _values(self, family: Any = None) -> list[Any]:
        """The kernel's fields in order, with *family* in place of its own."""
        return [family if one.name == "family" and family is not None else getattr(self.kernel, one.name)
                for one in fields(type(self.kernel))]
