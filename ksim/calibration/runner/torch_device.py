"""The GPU that PyTorch sees, as a `Device` and its `Toolbox`."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from ksim.calibration.names import nvidia_smi
from ksim.calibration.runner.device import KernelPoint, Launch, Unmeasurable
from ksim.calibration.runner.launches import LAUNCHES
from ksim.foundation.errors import ConfigError

#: PyTorch may cache this share of the memory from earlier points before it has to release it.
KEPT = 0.5


class TorchDevice:
    """The first GPU; raises ConfigError if there is no PyTorch, or if PyTorch sees no GPU."""

    def __init__(self) -> None:
        try:
            self.torch: Any = import_module("torch")
        except ImportError:
            raise ConfigError("the runner", "needs PyTorch and vLLM; run it where vLLM serves: "
                                            "pip install vllm, then python -m ksim.calibration.runner") from None
        if not self.torch.cuda.is_available():
            raise ConfigError("the runner", f"PyTorch {self.torch.__version__} sees no GPU; "
                                            f"is there one, and is the driver new enough (nvidia-smi)?")
        self.place = "cuda:0"
        self._properties = self.torch.cuda.get_device_properties(0)
        self.torch.manual_seed(0)

    @property
    def l2(self) -> float:
        return float(self._properties.L2_cache_size)

    @property
    def flash_attention(self) -> int:
        return 3 if self._properties.major == 9 else 2

    def about(self) -> Mapping[str, str | float]:
        return {"gpu": str(self._properties.name), "sms": float(self._properties.multi_processor_count),
                "torch": str(self.torch.__version__), "cuda": str(self.torch.version.cuda), "vllm": _version("vllm"),
                "driver": nvidia_smi("driver_version")}

    def prepare(self, point: KernelPoint, copies: int) -> Launch:
        if point.family not in LAUNCHES:
            raise Unmeasurable(f"the runner has no launch for {point.family}")
        try:
            return LAUNCHES[point.family](self, point, copies)
        except self.torch.cuda.OutOfMemoryError:
            raise Unmeasurable("the GPU's memory is too small, or in use") from None
        except Unmeasurable:
            raise
        except Exception as error:  # whatever a vLLM release raises, only this point fails
            raise Unmeasurable(_first_line(error)) from error

    def capture(self, launch: Launch, launches: int) -> Callable[[], float]:
        torch = self.torch
        try:
            side_stream = torch.cuda.Stream()
            side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side_stream):  # loading and compiling on first use cannot be captured
                launch(0)
            torch.cuda.current_stream().wait_stream(side_stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(launches):
                    launch(i)
            torch.cuda.synchronize()
        except torch.cuda.OutOfMemoryError:
            raise Unmeasurable("the GPU's memory is too small, or in use") from None
        except Exception as error:  # as in `prepare`
            raise Unmeasurable(_first_line(error)) from error
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def replay() -> float:
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3

        return replay

    def release(self) -> None:
        if self.torch.cuda.memory_reserved() > KEPT * self._properties.total_memory:
            self.torch.cuda.empty_cache()

    def filled(self, copies: int, *shape: int) -> list[Any]:
        return [self.torch.randn(shape, device=self.place, dtype=self.torch.bfloat16) for _ in range(copies)]

    def whole(self, numbers: "Sequence[int] | np.ndarray[Any, Any]", dtype: Any) -> Any:
        return self.torch.tensor(np.asarray(numbers), device=self.place, dtype=dtype)

    @property
    def ops(self) -> Any:
        return self._vllm_module("vllm._custom_ops")

    def op(self, library: str, name: str) -> Any:
        self._vllm_module("vllm._custom_ops")
        return getattr(getattr(self.torch.ops, library), name)

    def vllm(self, module: str, name: str) -> Any:
        return getattr(self._vllm_module(module), name)

    @staticmethod
    def _vllm_module(module: str) -> Any:
        try:
            return import_module(module)
        except ImportError as error:
            raise Unmeasurable(f"needs {module}: {error}") from None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
