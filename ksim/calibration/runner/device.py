"""What a sweep needs of the GPU that it measures on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from attrs import field, frozen

from ksim.calibration.measurements import Ints, Points


class Unmeasurable(Exception):
    """A point, or a whole family, cannot be measured here; the text says why."""


@frozen(eq=False)
class Point:
    """One kernel to measure: its family, number format and shape, and of attention the sequences."""

    family: str
    dtype: str
    shape: Mapping[str, float]
    qlens: Ints = field(factory=lambda: np.zeros(0, dtype=np.int64))
    kvlens: Ints = field(factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def of(cls, points: Points, point: int) -> "Point":
        shape = {name: column[point].item() for name, column in points.columns.items()}
        lengths = points.batches.lengths(point) if points.batches else ()
        return cls(points.family, points.dtype, shape, *lengths)

    def __getitem__(self, name: str) -> int:
        return int(self.shape[name])


#: Launches a kernel on the buffers of the given place in their rotation.
Launch = Callable[[int], None]


class Device(Protocol):
    """A GPU."""

    @property
    def l2(self) -> float:
        """Bytes of its L2 cache."""
        ...

    def about(self) -> Mapping[str, str | float]:
        """What it is, and the versions of what runs on it: gpu, sms, driver, torch, cuda, vllm."""
        ...

    def prepare(self, point: Point, copies: int) -> Launch:
        """Allocate and fill so many sets of buffers; raises Unmeasurable for what cannot run here."""
        ...

    def capture(self, launch: Launch, launches: int) -> Callable[[], float]:
        """Capture so many launches in a graph; calling what is returned replays it and says how many seconds it took.

        Raises Unmeasurable for a kernel that fails.
        """
        ...

    def release(self) -> None:
        """Free the buffers and graphs of the point before."""
        ...


class Toolbox(Protocol):
    """What launches with PyTorch and vLLM are made of.  What vLLM lacks raises Unmeasurable."""

    @property
    def torch(self) -> Any: ...

    @property
    def ops(self) -> Any:
        """vLLM's own kernels."""
        ...

    @property
    def place(self) -> str:
        """The GPU, as PyTorch calls it."""
        ...

    @property
    def flash_attention(self) -> int:
        """The version of FlashAttention that vLLM takes on this GPU."""
        ...

    def filled(self, copies: int, *shape: int) -> list[Any]:
        """Tensors of random numbers in BF16."""
        ...

    def whole(self, numbers: "Sequence[int] | np.ndarray[Any, Any]", dtype: Any) -> Any:
        """A tensor of whole numbers."""
        ...

    def op(self, library: str, name: str) -> Any:
        """A kernel of vLLM that is reached through PyTorch alone."""
        ...

    def vllm(self, module: str, name: str) -> Any:
        """Something out of vLLM."""
        ...
