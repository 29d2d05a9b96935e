"""The work of points, and the least seconds that a GPU's peaks allow for it; arrays with one entry per point.

The counts are those of `ksim.compute.kernels`; `tests/calibration` checks that they are equal where both know a family.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from attrs import frozen

from ksim.calibration.batches import Floats, Ints, PointBatches
from ksim.calibration.measurements import COLLECTIVES, Points
from ksim.foundation.errors import DataError
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu

#: Bytes of a copy per thread block.
PIECE = 32768


@frozen
class MemoryTraffic:
    """The memory traffic of a family: the columns that it needs, and functions of them for rows, reads and writes.

    A row is the work of one thread block, usually a token.  Reads and writes are in
    bytes.  Numbers are BF16, except the logits of argmax, which are FP32.
    """

    columns: tuple[str, ...]
    rows: Callable[..., Any]
    reads: Callable[..., Any]
    writes: Callable[..., Any]

    def of(self, points: Any) -> tuple[Any, Any, Any]:
        """Return the rows, bytes read and bytes written of *points*."""
        values = [points[name] for name in self.columns]
        return self.rows(*values), self.reads(*values), self.writes(*values)


def _tokens(t: Any, *_: Any) -> Any:
    return t


MOVES: Mapping[str, MemoryTraffic] = {
    "rms_norm": MemoryTraffic(("t", "h"), _tokens, lambda t, h: 2 * (t + 1) * h, lambda t, h: 2 * t * h),
    "fused_add_rms_norm": MemoryTraffic(("t", "h"), _tokens, lambda t, h: 2 * (2 * t + 1) * h, lambda t, h: 4 * t * h),
    "silu_mul": MemoryTraffic(("t", "inter"), _tokens, lambda t, inter: 4 * t * inter, lambda t, inter: 2 * t * inter),
    "rope": MemoryTraffic(("t", "hq", "hkv", "d"), _tokens, *2 * (lambda t, hq, hkv, d: 2 * t * (hq + hkv) * d,)),
    "kv_write": MemoryTraffic(("t", "hkv", "d"), _tokens, *2 * (lambda t, hkv, d: 4 * t * hkv * d,)),
    "argmax": MemoryTraffic(("t", "vocab"), _tokens, lambda t, vocab: 4 * t * vocab, lambda t, vocab: 4 * t),
    "quantize": MemoryTraffic(("t", "h"), _tokens, lambda t, h: 2 * t * h, lambda t, h: t * h),
    "copy": MemoryTraffic(("bytes",), lambda size: -(-size // PIECE), *2 * (lambda size: size,)),
}


#: Number formats by the name that points use, as the formats of weights and of activations.
FORMATS: Mapping[str, tuple[DType, DType]] = {
    **{dtype.label: (dtype, dtype) for dtype in DType},
    "fp8_block": (DType.FP8, DType.FP8),
    "fp8_w8a16": (DType.FP8, DType.BF16),
    "int8_w8a16": (DType.INT8, DType.BF16),
    "int4_w4a16": (DType.INT4, DType.BF16),
    "fp4_w4a16": (DType.FP4, DType.BF16),
    "fp4_w4a8": (DType.FP4, DType.FP8),
}
#: Multi-head latent attention: numbers in the cache per token, and numbers per head in a score and its value.
_LATENT, _LATENT_PAIR = 576, 192 + 128


@frozen(eq=False)
class PointWork:
    """FLOP in the number format `dtype`, and bytes to and from device memory."""

    flops: Floats
    bytes: Floats
    dtype: DType


def formats(points: Points) -> tuple[DType, DType]:
    """Return the formats of weights and activations of *points*; raise DataError for a format that ksim lacks."""
    if points.dtype not in FORMATS:
        raise DataError(str(points), f"{points.dtype!r} is not a number format that ksim knows ({', '.join(FORMATS)})")
    return FORMATS[points.dtype]


def work(points: Points) -> PointWork:
    """Return the least work of each of *points*; raise DataError for an unknown number format."""
    weights, activations = formats(points)
    if points.family in COLLECTIVES:
        return PointWork(np.zeros(len(points)), points["bytes"].astype(np.float64), DType.BF16)
    if points.family in _PRODUCTS:
        flops, moved = _PRODUCTS[points.family](points, weights.bytes, activations.bytes)
        return PointWork(flops, moved, DType.BF16 if points.batches else activations)
    _, read, written = MOVES[points.family].of(points)
    return PointWork(np.zeros(len(points)), (read + written).astype(np.float64), DType.FP32)


def floor(points: Points, gpu: Gpu) -> Floats:
    """Return the least seconds that a kernel can take for each of *points* on *gpu*."""
    least = work(points)
    if points.family in COLLECTIVES:
        gpus = points["gpus"].astype(np.float64)
        return np.asarray((gpus - 1) / gpus * least.bytes / (gpu.nvlink or gpu.pcie), dtype=np.float64)
    peak = gpu.flops.get(least.dtype, max(gpu.flops.values()))
    return np.maximum(least.flops / peak, least.bytes / gpu.bandwidth)


def pairs(batches: PointBatches, window: Ints | None = None) -> tuple[Ints, Ints]:
    """Count the (query, key) pairs of causal attention, and the keys that it reads.

    A query attends to the last `window` tokens, itself included; 0 or less means all.
    """
    new, length = batches.qlens, batches.kvlens
    seen = length.copy()
    if window is not None:
        run_windows = np.repeat(window, np.diff(batches.starts))
        seen = np.where(run_windows > 0, np.minimum(run_windows, length), length)
    growing = np.clip(seen - (length - new), 0, new)  # queries with less than a whole window before them
    first = length - new
    count = growing * first + growing * (growing + 1) // 2 + (new - growing) * seen
    read = np.minimum(length, seen + new - 1)
    return batches.total(batches.counts * count), batches.total(batches.counts * read)


def _gemm(points: Points, weights: float, activations: float) -> tuple[Floats, Floats]:
    m, n, k = (points[name].astype(np.float64) for name in "mnk")
    return 2.0 * m * n * k, k * n * weights + m * k * activations + m * n * DType.BF16.bytes


def _attention(points: Points, cache: float, _: float) -> tuple[Floats, Floats]:
    assert points.batches is not None
    heads, kv_heads, size = (points[name].astype(np.float64) for name in ("hq", "hkv", "d"))
    computed, read = pairs(points.batches, points.columns.get("window"))
    rows = points.batches.queries * heads * size * DType.BF16.bytes
    return 4.0 * computed * heads * size, 2.0 * rows + 2.0 * read * kv_heads * size * cache


def _mla(points: Points, cache: float, _: float) -> tuple[Floats, Floats]:
    assert points.batches is not None
    computed, read = pairs(points.batches)
    heads = points["hq"].astype(np.float64)
    return 2.0 * computed * heads * _LATENT_PAIR, read.astype(np.float64) * _LATENT * cache


def _moe(points: Points, weights: float, activations: float) -> tuple[Floats, Floats]:
    """The work of one rank.  If the number of active experts is not known, it is the least: those of one token."""
    tokens, experts, top, hidden, inter = (points[name].astype(np.float64) for name in ("t", "e", "topk", "h", "inter"))
    ranks = np.maximum(points.columns.get("ep", np.ones(len(points))), 1)
    active = points.columns.get("active", np.full(len(points), -1))
    active = np.where(active > 0, active, np.minimum(top, experts) / ranks)
    flops = 2.0 * tokens * top / ranks * 3.0 * hidden * inter
    return flops, 3.0 * active * hidden * inter * weights + tokens * hidden * (activations + DType.BF16.bytes)


#: Families of matrix products.
_PRODUCTS: Mapping[str, Callable[[Points, float, float], tuple[Floats, Floats]]] = {
    "gemm": _gemm, "attention": _attention, "mla": _mla, "moe": _moe}
