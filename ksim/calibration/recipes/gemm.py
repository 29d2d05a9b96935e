"""Dense matrix products: which rows are fitted, and which constants are free.

The public tables time six layers of weights in turn (one of nvfp4 and of fp8 in blocks), so small weights stay in the
L2 cache.  Their fp8 and fp4 rows include the kernel that quantises activations, their int8 rows (TensorRT-LLM's plug-in
for SmoothQuant) do not.  Our own sweep reads weights from device memory and does not quantise.

*Learned* from other architectures, there is no model on top of the physics: ridge regression, boosted trees and halves
of these were no better in any combination.  Constants for operand traffic, tile size, output traffic and the smallest
part of a split made it worse.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ksim.calibration.bounds import formats
from ksim.calibration.dataset import Dataset, Mask, RowRule, in_tables
from ksim.calibration.fitting import Candidate, FitSpec
from ksim.calibration.measurements import CHECKS, SWEEP, Measurements
from ksim.calibration.regression import NOTHING, Free, Regressor
from ksim.foundation.units import DType
from ksim.oracles import peak
from ksim.specs.hardware import Gpu

__all__ = ["FIT_SPECS"]

#: Guesses are round numbers; bounds lie within a factor of six of them, and shares of peaks below one.
FREE = {
    "start_async": Free(1e-6, 5e-6, 30e-6), "start_bulk": Free(0.5e-6, 2.5e-6, 15e-6),
    "step_async": Free(25e-9, 150e-9, 0.9e-6), "step_bulk": Free(17e-9, 100e-9, 0.6e-6),
    "turn_async": Free(0.1e-6, 3e-6, 40e-6), "turn_bulk": Free(0.02e-6, 0.3e-6, 4e-6),
    "tensor_bulk": Free(0.4, 0.85, 1.0), "memory": Free(0.4, 0.85, 1.0), "stream": Free(4.0, 20.0, 64.0),
}
SPLITS = {"reduce_async": Free(0.05e-6, 0.5e-6, 5e-6), "reduce_bulk": Free(0.05e-6, 2e-6, 12e-6)}
QUANTIZED = {"joule": Free(0.2e-12, 0.58e-12, 2e-12), "panel": Free(0.2, 1.0, 5.0), "row": Free(50.0, 700.0, 5e3),
             "chunk": Free(50.0, 1000.0, 8e3)}
#: Also fitted if the GPU itself is measured.
SINGLE_GPU = {"tensor_async": Free(0.4, 0.93, 1.0)}
#: `joule` is in J/FLOP above idle: A100 and RTX PRO reach 94 and 97 % of their peaks within their power limits, so
#: mma.sync kernels take no more than 1.12 pJ.
HELD = {"joule": 1.12e-12, "tensor_async": 0.93}
#: Bytes of a weight and of an activation, with their share of the scale of 16, and the layers that take turns.
STORED: Mapping[str, tuple[float, float, int]] = {
    "bf16": (2.0, 2.0, 6), "fp8": (1.0, 1.0, 6), "fp4": (0.5625, 0.5625, 1), "int8": (1.0, 1.0, 6),
    "int8_w8a16": (1.0, 2.0, 6), "int4_w4a16": (0.5, 2.0, 6), "fp8_block": (1.0, 1.0, 1)}

RULES = (
    RowRule("timed launch by launch: bound by the host",
            lambda rows: np.full(len(rows), rows.source.timing == "eager")),
    RowRule("one engine a GPU: bf16 of trtllm and sglang on A100, FP8 in blocks of trtllm", lambda rows: np.full(
        len(rows), rows.dtype in ("bf16", "fp8_block") and rows.source.backend not in (SWEEP, "vllm"))),
)
#: Layers of real models; smaller ones come from the L2 cache in these tables, and do not occur in a server.
CORE = RowRule("n and k of 1,024 or more", lambda rows: ~in_tables(rows) | ((rows["n"] >= 1024) & (rows["k"] >= 1024)))
PLACE = ("m", "n", "k")


def dataset(rows: Measurements, gpu: Gpu) -> Dataset:
    """Make a dataset of a table or of a sweep; in a sweep with a grid, the layers of real models are checks."""
    weight, activation, layers = STORED[rows.dtype]
    shape = {name: rows[name].astype(np.float64) for name in "mnk"}
    table = not rows.source.swept
    weights = layers * weight * shape["n"] * shape["k"]
    columns = {
        **shape, "weight_bytes": np.full(len(rows), weight), "activation_bytes": np.full(len(rows), activation),
        "peak": np.full(len(rows), peak(gpu, formats(rows)[1])),
        "footprint": weights if table else np.full(len(rows), np.inf),
        "quantized": np.full(len(rows), float(table and activation < DType.BF16.bytes and rows.dtype != "int8")),
    }
    checks = (*CHECKS, "sweep") if "grid" in rows.tags else CHECKS
    groups = np.unique(np.stack([shape["n"], shape["k"]]), axis=1, return_inverse=True)[1].ravel()
    return Dataset.of(rows, gpu, columns, groups=groups, checks=checks)


def grid(rows: Measurements) -> Mask:
    """Mark every 11th core row, 4.8 % of a table: a lattice over the ranks of m, n and k."""
    place = [np.unique(rows[name], return_inverse=True)[1] for name in "mnk"]
    chosen: Mask = (3 * place[0] + 9 * place[1] + 7 * place[2]) % 11 == 0
    return chosen


#: Kernels of a Gaussian process: the amplitude, and the length along each input.  They were chosen by leave-one-out
#: error inside the tables' own grids, on all GPUs together; chosen without four GPUs, they do as well on these.  fp8
#: jumps less from row to row, once the kernel that quantises is modelled apart.
BF16 = (
    (1.639, {"k": 16.2, "per": 45.9, "columns": 8.48, "size": 17.5, "steady": 3.69, "intensity": 42.1,
             "loss_256x256": 26.3, "down_8": 26.3, "full_64": 5.8, "full_256": 2.91, "waves_128x128": 20.1,
             "fill_128x128": 3.17, "fill_64x64": 7.22, "fill_256x128": 5.48, "fill_128x256": 1.51,
             "loss_128x176": 15.4}),
    (0.133, {"k": 13.9, "resident": 1.37, "twos": 21.8, "down_64": 16.8, "down_256": 2.8, "vector": 2.19, "few": 17.3,
             "weights": 8.93}),
)
FP8 = (
    (0.738, {"per": 49.3, "rows": 4.12, "columns": 1.46, "ridge": 18.0, "latency": 14.6, "compute": 9.56,
             "steady": 6.69, "intensity": 25.3, "loss_128x64": 27.3, "idle": 2.29, "loss_64x32": 40.6,
             "down_64": 32.1, "few": 7.78, "full_256": 2.25, "fill_64x64": 7.78, "microseconds": 57.1,
             "inputs": 48.3, "quantizing": 19.8, "loss_64x448": 36.6, "loss_64x320": 39.7}),
    (0.219, {"k": 5.67, "ridge": 29.0, "resident": 2.02, "twos": 30.8, "down_64": 3.23, "down_256": 4.86,
             "vector": 1.09, "weights": 12.4}),
)


def _measured(kernels: Sequence[tuple[float, Mapping[str, float]]], noise: float, steady: bool) -> Candidate:
    """Return a Gaussian process; with *steady*, its trend is the reference without blocks and waves."""
    names = tuple(dict.fromkeys(name for _, lengths in kernels for name in lengths))
    return Candidate(Regressor("layered_interpolation", {
        "amplitudes": [amplitude for amplitude, _ in kernels], "noise": noise,
        "lengths": [[lengths.get(name, np.inf) for name in names] for _, lengths in kernels],
        "slopes": [np.log(2.0) * (steady and name == "steady") for name in names]}), names)


MEASURED = {"bf16": _measured(BF16, 0.025, True), "fp8": _measured(FP8, 1e-4, False),
            "fp4": _measured(FP8, 1e-3, False)}

_COMMON = {"single_gpu": SINGLE_GPU, "measures": "gemm", "dataset": dataset, "rules": RULES, "core": CORE, "grid": grid,
           "place": PLACE, "learned": Candidate(NOTHING)}
FIT_SPECS = (
    FitSpec.of("gemm/bf16", "gemm", dtype="bf16", free={**FREE, **SPLITS}, held=HELD,
              table=MEASURED["bf16"], sweep=MEASURED["bf16"], **_COMMON),
    FitSpec.of("gemm/fp8", "gemm", dtype="fp8", free={**FREE, **QUANTIZED}, held={"tensor_async": 0.93},
              like=("gemm/bf16",), table=MEASURED["fp8"], sweep=MEASURED["fp8"], **_COMMON),
    FitSpec.of("gemm/fp8_block", "gemm", dtype="fp8_block", free={**FREE, **QUANTIZED}, held={"tensor_async": 0.93},
              like=("gemm/fp8", "gemm/bf16"), table=MEASURED["fp8"], sweep=MEASURED["fp8"], **_COMMON),
    FitSpec.of("gemm/fp4", "gemm", dtype="fp4",
              free={**FREE, **SPLITS, "row": QUANTIZED["row"], "chunk": QUANTIZED["chunk"]}, held=HELD,
              like=("gemm/fp8", "gemm/bf16"), table=MEASURED["fp4"], sweep=MEASURED["fp4"], **_COMMON),
    FitSpec.of("gemm/int8", "gemm", dtype="int8", free={**FREE, **QUANTIZED}, held={"tensor_async": 0.93},
              like=("gemm/fp8", "gemm/bf16"), table=MEASURED["fp8"], sweep=MEASURED["fp8"], **_COMMON),
    *(FitSpec.of(f"gemm/{dtype}", "gemm", dtype=dtype, free={**FREE, **SPLITS}, held=HELD, like=("gemm/bf16",),
                table=MEASURED["bf16"], sweep=MEASURED["bf16"], **_COMMON) for dtype in ("int8_w8a16", "int4_w4a16")),
)
