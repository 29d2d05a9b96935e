"""The GPU that a sweep measures on: the interface `Device`, and the GPU that PyTorch sees.

Each family's kernel has a function that launches it with PyTorch and vLLM.  It takes the toolbox, the point, and the
number of sets of buffers that rotate.  It allocates the buffers and returns a function that launches the kernel on one
set.  vLLM is imported on use, so that a machine without it can still measure what PyTorch alone runs.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from math import ceil
from typing import Any, Protocol

import numpy as np
from attrs import field, frozen

from ksim.calibration.batches import Ints
from ksim.calibration.datasheet import nvidia_smi
from ksim.calibration.measurements import Points
from ksim.foundation.errors import ConfigError


class Unmeasurable(Exception):
    """A point, or a whole family, cannot be measured on this machine; the message says why."""


@frozen(eq=False)
class MeasurementPoint:
    """One kernel to measure: its family, number format and shape, and the sequences of attention."""

    family: str
    dtype: str
    shape: Mapping[str, float]
    qlens: Ints = field(factory=lambda: np.zeros(0, dtype=np.int64))
    kvlens: Ints = field(factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def of(cls, points: Points, point: int) -> "MeasurementPoint":
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

    def prepare(self, point: MeasurementPoint, copies: int) -> Launch:
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


#: Tokens in a block of the KV cache, and the epsilon of norms; neither affects the time.
BLOCK, EPSILON = 16, 1e-6


def expert_choices(point: MeasurementPoint) -> Ints:
    """Return the `topk` different experts, of `e`, that each of `t` tokens goes to; the same in every call.

    The popularity of experts follows a Zipf law with exponent `skew`; 0 makes them equal.
    """
    rng = np.random.default_rng(0)
    experts = point["e"]
    popularity = -float(point.shape.get("skew", 0.0)) * np.log(np.arange(1, experts + 1))
    # The largest of log weights plus Gumbel noise are a sample without replacement.
    noise = rng.gumbel(size=(point["t"], experts)) + rng.permutation(popularity)
    return np.argpartition(-noise, point["topk"] - 1, axis=1)[:, :point["topk"]].astype(np.int64)


def expert_loads(point: MeasurementPoint) -> Ints:
    """Return the number of tokens of each expert."""
    return np.bincount(expert_choices(point).ravel(), minlength=point["e"]).astype(np.int64)


def gemm(tools: Toolbox, point: MeasurementPoint, copies: int) -> Launch:
    """cuBLAS, as `torch.nn.functional.linear`; in FP8, vLLM's CUTLASS kernel with a scale per token and column."""
    torch, (m, n, k) = tools.torch, (point["m"], point["n"], point["k"])
    inputs, weights = tools.filled(copies, m, k), tools.filled(copies, n, k)
    if point.dtype == "bf16":
        outputs = tools.filled(copies, m, n)
        return lambda i: torch.mm(inputs[i % copies], weights[i % copies].t(), out=outputs[i % copies])
    if point.dtype != "fp8":
        raise Unmeasurable(f"the runner knows no product in {point.dtype}")
    scaled_mm = tools.ops.cutlass_scaled_mm
    inputs, weights = ([tensor.to(torch.float8_e4m3fn) for tensor in tensors] for tensors in (inputs, weights))
    rows, columns = (torch.ones(size, 1, device=tools.place, dtype=torch.float32) for size in (m, n))
    return lambda i: scaled_mm(inputs[i % copies], weights[i % copies].t(), rows, columns, torch.bfloat16)


def attention(tools: Toolbox, point: MeasurementPoint, copies: int) -> Launch:
    """FlashAttention over a paged KV cache with its blocks in random order, as vLLM calls it."""
    function = tools.vllm("vllm.vllm_flash_attn", "flash_attn_varlen_func")
    torch, heads, size = tools.torch, point["hq"], point["d"]
    blocks = [ceil(length / BLOCK) for length in point.kvlens]
    order = torch.randperm(sum(blocks), device=tools.place, dtype=torch.int32)
    table = torch.zeros(len(blocks), max(blocks), device=tools.place, dtype=torch.int32)
    for row, start, count in zip(table, np.cumsum([0, *blocks]), blocks, strict=False):
        row[:count] = order[start:start + count]
    queries = tools.filled(copies, int(point.qlens.sum()), heads, size)
    outputs = tools.filled(copies, int(point.qlens.sum()), heads, size)
    caches = tools.filled(copies, 2, sum(blocks), BLOCK, point["hkv"], size)
    fixed = {
        "cu_seqlens_q": tools.whole(np.cumsum([0, *point.qlens]), torch.int32),
        "seqused_k": tools.whole(point.kvlens, torch.int32), "block_table": table,
        "max_seqlen_q": int(point.qlens.max()), "max_seqlen_k": int(point.kvlens.max()),
        "softmax_scale": size**-0.5, "causal": True, "fa_version": tools.flash_attention,
    }

    def launch(i: int) -> None:
        keys, values = caches[i % copies].unbind(0)
        function(q=queries[i % copies], k=keys, v=values, out=outputs[i % copies], **fixed)

    return launch


def moe(tools: Toolbox, point: MeasurementPoint, copies: int) -> Launch:
    """vLLM's fused experts in Triton: gate and up, SiLU, down, and the weighted sum."""
    function = tools.vllm("vllm.model_executor.layers.fused_moe", "fused_experts")
    torch, (tokens, experts, hidden, inter) = tools.torch, (point["t"], point["e"], point["h"], point["inter"])
    inputs = tools.filled(copies, tokens, hidden)
    up, down = tools.filled(copies, experts, 2 * inter, hidden), tools.filled(copies, experts, hidden, inter)
    ids = tools.whole(expert_choices(point), torch.int32)
    weights = torch.full(ids.shape, 1 / point["topk"], device=tools.place, dtype=torch.float32)
    return lambda i: function(inputs[i % copies], up[i % copies], down[i % copies], weights, ids)


def rms_norm(tools: Toolbox, point: MeasurementPoint, copies: int) -> Launch:
    inputs, outputs = (tools.filled(copies, point["t"], point["h"]) for _ in range(2))
    (scale,), function = tools.filled(1, point["h"]), tools.ops.rms_norm
    return lambda i: function(outputs[i % copies], inputs[i % copies], scale, EPSILON)


def fused_add_rms_norm(tools: Toolbox, point: MeasurementPoint, copies: int) -> Launch:
    inputs, residuals = (tools.filled(copies, point["t"], point["h"]) for _ in range(2))
    (scale,), function = tools.filled(1, point["h"]), tools.ops.fused_add_rms_norm
    return lambda i: function(inputs[i % copies], residuals[i % copies], scale, EPSILON)


def silu_mul(tools: Toolbox, point: MeasurementPoint, copies: int) -> Launch:
    inputs = tools.filled(copies, point["t"], 2 * point["inter"])
    outputs = tools.filled(copies, point["t"], point["inter"])
    function = tools.op("_C", "silu_and_mul")
    return lambda i: function(outputs[i % copies], inputs[i % copies])


def rope(tools: Toolbox, point: MeasurementPoint, copies: int) -> Launch:
    torch, tokens, size = tools.torch, point["t"], point["d"]
    queries = tools.filled(copies, tokens, point["hq"] * size)
    keys = tools.filled(copies, tokens, point["hkv"] * size)
    (angles,), function = tools.filled(1, max(tokens, 8192), size), tools.ops.rotary_embedding
    positions = torch.arange(tokens, device=tools.place)
    return lambda i: function(positions, queries[i % copies], keys[i % copies], size, angles, True)


def kv_write(tools: Toolbox, point: MeasurementPoint, copies: int) -> Launch:
    """Keys and values of some tokens, written to random slots of a paged cache."""
    torch, tokens, shape = tools.torch, point["t"], (point["hkv"], point["d"])
    blocks = ceil(tokens / BLOCK)
    keys, values = (tools.filled(copies, tokens, *shape) for _ in range(2))
    caches = tools.filled(copies, 2, blocks, BLOCK, *shape)
    slots = torch.randperm(blocks * BLOCK, device=tools.place)[:tokens]
    scale = torch.ones(1, device=tools.place, dtype=torch.float32)
    function = tools.ops.reshape_and_cache_flash

    def launch(i: int) -> None:
        key_cache, value_cache = caches[i % copies].unbind(0)
        function(keys[i % copies], values[i % copies], key_cache, value_cache, slots, "auto", scale, scale)

    return launch


def argmax(tools: Toolbox, point: MeasurementPoint, copies: int) -> Launch:
    logits = [tensor.float() for tensor in tools.filled(copies, point["t"], point["vocab"])]
    return lambda i: logits[i % copies].argmax(dim=-1)


def quantize(tools: Toolbox, point: MeasurementPoint, copies: int) -> Launch:
    """Quantisation to FP8 with a scale per token."""
    inputs, function = tools.filled(copies, point["t"], point["h"]), tools.ops.scaled_fp8_quant
    return lambda i: function(inputs[i % copies], use_per_token_if_dynamic=True)


def copy(tools: Toolbox, point: MeasurementPoint, copies: int) -> Launch:
    torch, size = tools.torch, point["bytes"]
    pairs = [torch.zeros(2, size, device=tools.place, dtype=torch.uint8) for _ in range(copies)]
    return lambda i: pairs[i % copies][0].copy_(pairs[i % copies][1])


#: Families that can be measured.  What a launch returns is ignored.
LAUNCHES: Mapping[str, Callable[[Toolbox, MeasurementPoint, int], Callable[[int], Any]]] = {
    function.__name__: function for function in (
        gemm, attention, moe, rms_norm, fused_add_rms_norm, silu_mul, rope, kv_write, argmax, quantize, copy)}


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

    def prepare(self, point: MeasurementPoint, copies: int) -> Launch:
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
