"""Points as the kernels that ksim simulates, and how the collectors of public tables spread tokens over experts."""

from collections.abc import Callable, Mapping
from math import ceil

import numpy as np

from ksim.calibration.batches import Ints
from ksim.calibration.bounds import MOVES, formats
from ksim.calibration.measurements import Points
from ksim.compute.expert_rows import ExpertRows, expert_rows, levelled
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.basic import Gemm, GroupedGemm, Pointwise
from ksim.flow.batch import Batch
from ksim.foundation import catalog
from ksim.foundation.errors import DataError
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu


def kernels(points: Points, point: int) -> list[Kernel]:
    """Return what is launched for one of *points*; raise DataError for a family that a single GPU does not run."""
    if points.family not in MAKERS:
        raise DataError(str(points), f"is not a family that a single GPU runs ({', '.join(MAKERS)})")
    return MAKERS[points.family](points, point)


def seconds(points: Points, gpu: Gpu) -> list[float]:
    """Return the time of each of *points* on *gpu* by the `waves` oracle."""
    oracle = catalog.find("oracles", "waves")()
    return [sum(oracle.seconds(kernel, gpu) for kernel in kernels(points, i)) for i in range(len(points))]


def _values(points: Points, point: int, *names: str) -> tuple[int, ...]:
    return tuple(int(points[name][point]) for name in names)


def _gemm(points: Points, point: int) -> list[Kernel]:
    m, n, k = _values(points, point, "m", "n", "k")
    return [Gemm(m, n, k, *formats(points))]


def _attention(points: Points, point: int) -> list[Kernel]:
    assert points.batches is not None
    window = int(points["window"][point]) if "window" in points.columns else 0
    heads, kv_heads, size = _values(points, point, "hq", "hkv", "d")
    layer = AttentionLayer(heads, kv_heads, size, max(0, window), formats(points)[0])
    sequences = zip(*(lengths.tolist() for lengths in points.batches.lengths(point)), strict=True)
    return [layer.over(Batch.of(*((new, length - new) for new, length in sequences)))]


def _moe(points: Points, point: int) -> list[Kernel]:
    """The fused kernels of an expert layer, its rows spread over the experts by their popularity."""
    tokens, experts, top, hidden, inter = _values(points, point, "t", "e", "topk", "h", "inter")
    skew = max(0.0, float(points["skew"][point])) if "skew" in points.columns else 0.0
    return fused(expert_rows(tokens, top, experts, skew), tokens, hidden, inter, formats(points))


def fused(spread: ExpertRows, tokens: int, hidden: int, inter: int, dtypes: tuple[DType, DType]) -> list[Kernel]:
    """Return the fused kernels of experts that get the rows *spread*; *dtypes* are of weights and activations."""
    rows = sum(load * count for load, count in spread)
    return [GroupedGemm(spread, 2 * inter, hidden, tokens, *dtypes, inputs=min(tokens, rows)),
            _moving("silu_mul", 2 * rows * inter, rows * inter, rows),
            GroupedGemm(spread, hidden, inter, tokens, *dtypes),
            _moving("moe_combine", rows * hidden, tokens * hidden, tokens)]


def _moving(family: str, read: float, written: float, rows: int) -> Pointwise:
    """A pointwise kernel that reads and writes so many BF16 numbers."""
    return Pointwise(family, DType.BF16.bytes * read, DType.BF16.bytes * written, 0.0, rows)


def _moved(points: Points, point: int) -> list[Kernel]:
    columns = MOVES[points.family].columns
    rows, read, written = MOVES[points.family].of(dict(zip(columns, _values(points, point, *columns), strict=True)))
    return [Pointwise(points.family, read, written, 0.0, rows)]


MAKERS: Mapping[str, Callable[[Points, int], list[Kernel]]] = {
    "gemm": _gemm, "attention": _attention, "moe": _moe, **dict.fromkeys(MOVES, _moved)}


def balanced(tokens: int, top_k: int, experts: int, ranks: int) -> Ints:
    """Return the rows of the first rank's experts, if tokens are assigned evenly, in strides over all experts."""
    stride = ceil(experts / top_k)
    token, choice = np.arange(tokens)[:, None], np.arange(top_k)[None]
    first = token if tokens >= stride else token * stride // tokens
    return np.bincount(((first + choice * stride) % experts).ravel(), minlength=experts)[: experts // ranks]


def power_law(tokens: int, top_k: int, experts: int, ranks: int, exponent: float, seed: int) -> Ints:
    """Return the rows of the fullest rank's experts, if loads are drawn from a bounded power law."""
    rows = tokens * top_k
    lowest, highest = (1.0, 0.8 * tokens) if rows > experts else (0.01, 2.0)
    power = 1 - exponent
    uniform = np.random.default_rng(seed).random(experts)
    drawn = ((highest**power - lowest**power) * uniform + lowest**power) ** (1 / power)
    mean = drawn / drawn.sum() * rows
    spread = levelled(np.minimum(np.round(mean), tokens).astype(np.int64), mean, tokens, rows)
    by_rank = spread.reshape(ranks, -1)
    fullest: Ints = by_rank[by_rank.sum(axis=1).argmax()]
    return fullest
