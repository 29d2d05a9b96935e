"""Tables of measured power and energy."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from attrs import evolve

from tests.calibration.samples import IDLE, KERNELS, row, sweep


def kernels(folder):
    """Sustained kernels that draw what the catalogue says of the H200."""
    lines = [{**IDLE, "watts": 128.8}]
    for family, planned, seconds, clock in KERNELS:
        kernel: Any = planned
        if family == "copy":
            kernel = evolve(kernel, write_bytes=kernel.read_bytes)
        shape = ({"m": kernel.m, "n": kernel.n, "k": kernel.k} if family == "gemm" else
                 {"bytes": int(kernel.read_bytes)})
        lines.append({**shape, "family": family, "sm_mhz": 1e-6 * clock, "latency_us": 1e6 * seconds,
                      "graph_us": 1e6 * seconds,
                      "energy_mj_per_kernel": 1e3 * row(family, kernel, seconds, clock).joules})
    pq.write_table(pa.Table.from_pylist(sweep(*lines)), folder / "kernels_energy.parquet")


def boards(folder, *rows):
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "power_sample.parquet")
