"""Points as the kernels that ksim simulates, one by one."""

from collections.abc import Callable, Mapping

from ksim.calibration.bounds import formats
from ksim.calibration.measurements import Points
from ksim.calibration.traffic import MOVES
from ksim.compute.expert_rows import ExpertRows, expert_rows
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.grouped_gemm import GroupedGemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.flow.batch import Batch
from ksim.foundation.errors import DataError
from ksim.foundation.units import DType
from ksim.oracles.waves import Waves
from ksim.specs.hardware import Gpu


def kernels(points: Points, point: int) -> list[Kernel]:
    """What is launched for one of *points*; raises DataError for a family that is no kernel of one GPU."""
    if points.family not in MAKERS:
        raise DataError(str(points), f"is not of the families that a single GPU runs ({', '.join(MAKERS)})")
    return MAKERS[points.family](points, point)


def seconds(points: Points, gpu: Gpu, oracle: Waves | None = None) -> list[float]:
    """How long the `waves` oracle, or another, expects each of *points* to take on *gpu*."""
    oracle = oracle or Waves()
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
    """The fused kernels of a mixture, its rows spread over the experts as their popularity says."""
    tokens, experts, top, hidden, inter = _values(points, point, "t", "e", "topk", "h", "inter")
    skew = max(0.0, float(points["skew"][point])) if "skew" in points.columns else 0.0
    return fused(expert_rows(tokens, top, experts, skew), tokens, hidden, inter, formats(points))


def fused(spread: ExpertRows, tokens: int, hidden: int, inter: int, dtypes: tuple[DType, DType]) -> list[Kernel]:
    """The fused kernels of experts that get *spread* of so many tokens; *dtypes* of weights and activations."""
    rows = sum(each * count for each, count in spread)
    return [GroupedGemm(spread, 2 * inter, hidden, tokens, *dtypes, inputs=min(tokens, rows)),
            _moving("silu_mul", 2 * rows * inter, rows * inter, rows),
            GroupedGemm(spread, hidden, inter, tokens, *dtypes),
            _moving("moe_combine", rows * hidden, tokens * hidden, tokens)]


def _moving(family: str, read: float, written: float, rows: int) -> Pointwise:
    """So many numbers in BF16."""
    return Pointwise(family, DType.BF16.bytes * read, DType.BF16.bytes * written, 0.0, rows)


def _moved(points: Points, point: int) -> list[Kernel]:
    columns = MOVES[points.family].columns
    rows, read, written = MOVES[points.family].of(dict(zip(columns, _values(points, point, *columns), strict=True)))
    return [Pointwise(points.family, read, written, 0.0, rows)]


MAKERS: Mapping[str, Callable[[Points, int], list[Kernel]]] = {
    "gemm": _gemm, "attention": _attention, "moe": _moe, **dict.fromkeys(MOVES, _moved)}
