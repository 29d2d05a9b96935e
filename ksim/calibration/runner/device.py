"""The interfaces of the GPU that a sweep measures on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from attrs import field, frozen

from ksim.calibration.batches import Ints
from ksim.calibration.measurements import Points


class Unmeasurable(Exception):
    """A point, or a whole family, cannot be measured on this machine; the message says why."""


@frozen(eq=False)
class KernelPoint:
    """One kernel to measure: its family, number format and shape, and the sequences of attention."""

    family: str
    dtype: str
    shape: Mapping[str, float]
    qlens: Ints = field(factory=lambda: np.zeros(0, dtype=np.int64))
    kvlens: Ints = field(factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def of(cls, points: Points, point: int) -> "KernelPoint":
        shape = {name: column[point].item() for name, column in points.columns.items()}
        lengths = points.batches.lengths(point) if points.batches else ()
        return cls(points.family, points.dtype, shape, *lengths)

    def __getitem__(self, name: str) -> int:
        return int(self.shape[name])


#: Launches a kernel on the i-th set of rotating buffers.
Launch = Callable[[int], None]


class Device(Protocol):
    """A GPU that can time kernels."""

    @property
    def l2(self) -> float:
        """Bytes of its L2 cache."""
        ...

    def about(self) -> Mapping[str, str | float]:
        """Return its name, its SMs and the versions of its software: gpu, sms, driver, torch, cuda, vllm."""
        ...

    def prepare(self, point: KernelPoint, copies: int) -> Launch:
        """Allocate and fill *copies* sets of buffers; raise Unmeasurable for a kernel that cannot run here."""
        ...

    def capture(self, launch: Launch, launches: int) -> Callable[[], float]:
        """Capture *launches* launches in a graph; return a function that replays it and returns its seconds.

        Raises Unmeasurable for a kernel that fails.
        """
        ...

    def release(self) -> None:
        """Free the buffers and graphs of the last point."""
        ...


class Toolbox(Protocol):
    """The parts of PyTorch and vLLM that launches need; raises Unmeasurable for what vLLM lacks."""

    @property
    def torch(self) -> Any: ...

    @property
    def ops(self) -> Any:
        """vLLM's own kernels."""
        ...

    @property
    def place(self) -> str:
        """PyTorch's name of the GPU."""
        ...

    @property
    def flash_attention(self) -> int:
        """The version of FlashAttention that vLLM uses on this GPU."""
        ...

    def filled(self, copies: int, *shape: int) -> list[Any]:
        """Return *copies* BF16 tensors of random numbers."""
        ...

    def whole(self, numbers: "Sequence[int] | np.ndarray[Any, Any]", dtype: Any) -> Any:
        """Return a tensor of whole numbers."""
        ...

    def op(self, library: str, name: str) -> Any:
        """Return a kernel of vLLM that is only registered with PyTorch."""
        ...

    def vllm(self, module: str, name: str) -> Any:
        """Return an object from a module of vLLM."""
        ...
