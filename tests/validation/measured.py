"""Files of measurements, as `ksim validate energy` and `ksim validate silicon` read them."""

import pyarrow as pa
import pyarrow.parquet as pq
from attrs import evolve

from tests.calibration.test_power import IDLE, KERNELS, row, sweep

#: A row of a table of silicon samples.
ROW = {
    "id": "one", "backend": "vllm", "backend_version": "0.15.1", "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "system": "h100_sxm", "precision": "fp8", "mode": "agg", "isl": 256, "osl": 16, "tp_size": 1, "pp_size": 1,
    "attention_dp_size": None, "moe_tp_size": 1, "moe_ep_size": 1, "concurrency": 4, "silicon_ttft_ms": 40.0,
    "silicon_tpot_ms": 5.0, "source": "inferencex_csv_2026-04-06", "group": "g1", "primary": True, "flags": "",
}


def write_runs(path, *changes, without=()):
    """A table of rows that differ from `ROW` by *changes*, without some columns."""
    rows = [{key: value for key, value in (ROW | change).items() if key not in without} for change in changes]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_sustained(folder):
    """A table of sustained kernels that draw what the catalogue says of the H200."""
    lines = [{**IDLE, "watts": 128.8}]
    for family, planned, seconds, clock in KERNELS:
        kernel = evolve(planned, write_bytes=planned.read_bytes) if family == "copy" else planned
        shape = ({"m": kernel.m, "n": kernel.n, "k": kernel.k} if family == "gemm" else
                 {"bytes": int(kernel.read_bytes)})
        lines.append({**shape, "family": family, "sm_mhz": 1e-6 * clock, "latency_us": 1e6 * seconds,
                      "graph_us": 1e6 * seconds,
                      "energy_mj_per_kernel": 1e3 * row(family, kernel, seconds, clock).joules})
    pq.write_table(pa.Table.from_pylist(sweep(*lines)), folder / "kernels_energy.parquet")


def write_boards(folder, *rows):
    """A public table of kernels with the power of boards."""
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "power_sample.parquet")
