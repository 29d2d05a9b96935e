"""Multi-head latent attention: which rows are fitted, and which constants are free.

Only TensorRT-LLM's kernels are fitted: vLLM's rows were launched one by one and have a floor of 100 to 300 us.
Data-centre GPUs and the others run different kernels, so learning one group from the other is of little use.  One set
of constants is learned all the same; a measurement of the GPU itself is more reliable.
"""

import numpy as np

from ksim.calibration.bounds import formats
from ksim.calibration.dataset import Dataset, Mask, RowRule, group_by
from ksim.calibration.fitting import Candidate, FitSpec
from ksim.calibration.measurements import Measurements
from ksim.calibration.regression import NOTHING, Free, Regressor
from ksim.specs.hardware import Gpu

__all__ = ["FIT_SPECS"]

FREE = {"start": Free(1e-6, 13e-6, 40e-6), "context": Free(0.05, 0.5, 1.0), "generation": Free(0.02, 0.4, 1.0),
        "memory": Free(0.2, 0.8, 1.0), "sharpness": Free(1.0, 2.0, 6.0)}
RULES = (RowRule("vLLM's rows, timed launch by launch",
                 lambda rows: np.full(len(rows), rows.source.backend == "vllm")),)
INPUTS = ("log_batch", "log_heads", "log_length", "generation", "start_share", "log_compute_over_memory", "log_waves")
PLACE = ("log_compute_over_memory", "log_batch", "log_heads", "log_length")


def dataset(rows: Measurements, gpu: Gpu) -> Dataset:
    """Make a dataset of points with one run of equal sequences each."""
    assert rows.batches is not None
    batches = rows.batches
    columns = {
        "batch": batches.counts, "query": batches.qlens, "length": batches.kvlens, "heads": rows["hq"],
        "generation": rows.tags == "decode", "cache_bits": np.full(len(rows), 8 * formats(rows)[0].bytes)}
    shapes = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    return Dataset.of(rows, gpu, shapes, groups=group_by(rows, "hq"))


def grid(rows: Measurements) -> Mask:
    """Mark one row in 21: a lattice over the ranks of the values of batch, heads and length."""
    assert rows.batches is not None
    place = [np.unique(column, return_inverse=True)[1] for column in (
        rows.batches.counts, rows["hq"], rows.batches.kvlens)]
    chosen: Mask = (place[0] + 3 * place[1] + 7 * place[2]) % 21 == 0
    return chosen


FIT_SPECS = tuple(
    FitSpec.of(f"mla/{dtype}", "mla", measures="mla", dtype=dtype, dataset=dataset, free=FREE, rules=RULES, grid=grid,
              place=PLACE, learned=Candidate(NOTHING), table=Candidate(Regressor("interpolation"), INPUTS),
              sweep=Candidate(Regressor("interpolation"), INPUTS))
    for dtype in ("bf16", "fp8"))
