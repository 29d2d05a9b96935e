"""Grouped matrix products: which rows of measured expert layers are fitted, and which constants are free.

A row is a whole layer: the two grouped products, the activation between them, the sum over a token's experts, the
kernels that quantise the inputs of the products, and, in the public tables, the router before them.  Only the products
are fitted; the time of the rest is subtracted.

Seven constants are fitted to our own sweep, with no model on top.  Forms that were tried and dropped: a tail of the
last wave, a share for each height of a tile in place of a power, a launch time that grows with the active experts.
Other architectures run other engines' kernels, and trees learned from the others made all of them worse.
"""

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ksim.calibration.batches import Floats
from ksim.calibration.bounds import formats
from ksim.calibration.dataset import Dataset, Mask, RowRule, group_by, in_tables, other_engines
from ksim.calibration.fitting import Candidate, FitSpec
from ksim.calibration.kernels import balanced, power_law
from ksim.calibration.measurements import Measurements
from ksim.calibration.regression import NOTHING, Free, Regressor
from ksim.compute.expert_rows import ExpertRows, expert_rows
from ksim.foundation.units import DType
from ksim.oracles.efficiency.families import Shapes, family, tiles
from ksim.specs.hardware import Gpu

__all__ = ["FIT_SPECS"]

FREE = {
    "start": Free(0.0, 7e-6, 20e-6), "ramp": Free(0.0, 0.8e-6, 4e-6), "compute": Free(0.2, 0.5, 0.9),
    "growth": Free(0.0, 0.4, 2.0), "depth": Free(0.0, 60.0, 400.0), "memory": Free(0.6, 0.92, 1.0),
    "sharpness": Free(1.0, 3.0, 8.0),
}
#: Weights of 4 bits that are multiplied in 16: unpacking keeps kernels below both peaks.
UNPACKED = {**FREE, "compute": Free(0.05, 0.3, 0.9), "memory": Free(0.2, 0.7, 1.0)}
HELD = {"row": 0.2e-9}  # the kernel that sorts rows by expert, from profiled steps of qwen3-30b-a3b
#: The activation between the products, as fitted to our sweep.
ACTIVATION = {"start": 1.44e-6, "ramp": 26e-9, "kib": 27.5, "passes": 954.0, "l2": 24.3, "memory": 0.887,
              "capacity": 0.853, "sharpness": 7.65, "pass_bytes": 49152.0}
#: PyTorch's sum over a token's experts, which no sweep has: from profiled steps of qwen3-30b-a3b on an H200, 4.6 us for
#: a token, 105 us for 8,000.
COMBINE = {"start": 4.5e-6, "l2": 11.3, "memory": 0.61}
#: Seconds of the router, softmax and top-k in a public module, in separate kernels or fused.
ROUTER, FUSED_ROUTER = 12e-6, 6e-6
#: (hidden, inter, top-k) of experts without a gate: NVIDIA Nemotron's squared ReLU, since vLLM 0.24.
UNGATED = {(2688, 1856, 6), (2048, 5120, 22), (1024, 2688, 22), (4096, 2688, 22)}
HOPPER, DATA_CENTRE_BLACKWELL = ("h100", "h200"), ("b200", "b300", "gb200", "gb300")

RULES = (
    other_engines("one engine a GPU"),
    RowRule("FP8 on Hopper, whose kernel streams weights at a tenth of the bandwidth",
            lambda rows: np.full(len(rows), not rows.source.swept and rows.dtype == "fp8" and rows.gpu in HOPPER)),
    RowRule("layers that go to CUTLASS on Blackwell, where all others go to TensorRT-LLM",
            lambda rows: np.full(len(rows), rows.gpu in DATA_CENTRE_BLACKWELL and "cutlass" in rows.source.kernel)),
    RowRule("MXFP4 of others than gpt-oss, which Marlin computes",
            lambda rows: np.full(len(rows), rows.dtype == "fp4_w4a16" and "compressedtensors" in rows.source.kernel)),
    RowRule("fewer than 64 columns of an expert on a rank: times jump by up to 90 times between neighbours",
            lambda rows: in_tables(rows) & (rows["inter"] < 64)),
)
PLACE = ("log_tokens", "log_compute_over_memory", "log_rows_per_expert", "log_weight", "log_narrow")
INPUTS = ("log_tokens", "log_rows_per_expert", "log_weight", "log_narrow", "log_imbalance", "start_share",
          "log_compute_over_memory", "log_waves", "residency")


def dataset(rows: Measurements, gpu: Gpu) -> Dataset:
    """Make a dataset of a table, whose weights the last run left in the L2 cache, or of a sweep."""
    table = not rows.source.swept
    tokens, hidden, inter = (rows[name].astype(np.float64) for name in ("t", "h", "inter"))
    spread = _spread(rows)
    weights, activations = formats(rows)
    common: dict[str, Floats] = {
        **spread, "tokens": tokens, "weight_bits": np.full(len(rows), 8.0 * weights.bytes),
        "bits": np.full(len(rows), 8.0 * activations.bytes), "warm": np.full(len(rows), float(table))}
    gate = np.where(_ungated(rows), 1.0, 2.0)
    gate_up = {**common, "inputs": np.minimum(tokens, spread["rows"]), "n": gate * inter, "k": hidden}
    down = {**common, "inputs": spread["rows"], "n": hidden, "k": inter}
    # Triton also activates and adds up the pairs of other ranks' experts.
    pairs = tokens * rows["topk"] if _triton(rows) else spread["rows"]
    others = _moved(gpu, ACTIVATION, pairs, 2 * gate * inter, 2 * inter) + _moved(
        gpu, COMBINE, tokens, 2 * hidden * pairs / tokens, 2 * hidden)
    if activations.bytes < DType.BF16.bytes:
        others = others + _moved(gpu, ACTIVATION, tokens, 2 * hidden, activations.bytes * hidden) + _moved(
            gpu, ACTIVATION, spread["rows"], 2 * inter, activations.bytes * inter)
    router = (ROUTER if _triton(rows) else FUSED_ROUTER) if table else 0.0
    return Dataset.of(rows, gpu, gate_up, down, other_seconds=others + router,
                      groups=group_by(rows, "e", "topk", "h", "inter"))


def _triton(rows: Measurements) -> bool:
    return rows.source.swept or "triton" in rows.source.kernel or "fused_moe" in rows.source.kernel


def _ungated(rows: Measurements) -> Mask:
    if rows.source.swept or not rows.source.version.startswith("0.24"):
        return np.zeros(len(rows), dtype=np.bool_)
    shapes = zip(rows["h"].tolist(), rows["inter"].tolist(), rows["topk"].tolist(), strict=True)
    return np.array([any((h, top) == (hidden, k) and inter and whole % inter == 0 for hidden, whole, k in UNGATED)
                     for h, inter, top in shapes], dtype=np.bool_)


def _moved(gpu: Gpu, terms: Mapping[str, float], rows: Floats, read: Floats, written: Floats) -> Floats:
    """Return the seconds of a kernel whose *rows* each read and write so many bytes."""
    shapes: Shapes = {"rows": rows, "read_bytes": rows * read, "write_bytes": rows * written}
    return family("pointwise").physics(gpu, shapes, terms).seconds


def _spread(rows: Measurements) -> dict[str, Floats]:
    """Return how the rows of each layer are spread over the rank's experts."""
    ranks = rows.columns.get("ep", np.ones(len(rows), dtype=np.int64))
    keys = zip(rows["t"].tolist(), rows["topk"].tolist(), rows["e"].tolist(), ranks.tolist(),
               rows.columns.get("skew", np.zeros(len(rows))).tolist(), strict=True)
    by_row = [_tiles(*key, table=not rows.source.swept) for key in keys]
    return {name: np.array([counts[name] for counts in by_row]) for name in by_row[0]}


@cache
def _tiles(tokens: int, top_k: int, experts: int, ranks: int, skew: float, table: bool) -> Mapping[str, float]:
    if not table:
        return tiles(expert_rows(tokens, top_k, experts, max(0.0, skew)))
    drawn = ([power_law(tokens, top_k, experts, ranks, skew, seed) for seed in range(3)] if skew else
             [balanced(tokens, top_k, experts, ranks)])
    by_draw = [tiles(_counted(rows)) for rows in drawn]
    return {name: float(np.mean([counts[name] for counts in by_draw])) for name in by_draw[0]}


def _counted(rows: NDArray[np.int64]) -> ExpertRows:
    values, counts = np.unique(rows[rows > 0], return_counts=True)
    return tuple(zip(values.tolist(), counts.tolist(), strict=True)) or ((1, 1),)


def grid(rows: Measurements) -> Mask:
    """Mark one row in 22: a lattice over the ranks of the values of tokens, ranks and layers."""
    place = [np.unique(column, return_inverse=True)[1] for column in (
        rows["t"], rows["ep"], group_by(rows, "e", "topk", "h", "inter"), rows["skew"])]
    chosen: Mask = (place[0] + 5 * place[1] + 9 * place[2] + 13 * place[3]) % 22 == 0
    return chosen


FIT_SPECS = tuple(
    FitSpec.of(f"grouped_gemm/{dtype}", "grouped_gemm", measures="moe", dtype=dtype, dataset=dataset,
              free=UNPACKED if dtype.endswith("w4a16") else FREE, held=HELD,
              like=() if dtype == "bf16" else ("grouped_gemm/bf16",), rules=RULES, grid=grid, place=PLACE,
              learned=Candidate(NOTHING),
              table=Candidate(Regressor("interpolation"), INPUTS), sweep=Candidate(NOTHING))
    for dtype in ("bf16", "fp8", "fp8_block", "fp4", "fp4_w4a16", "fp4_w4a8", "int4_w4a16"))
