"""Tables of measured runs, like the public one."""

import pyarrow as pa
import pyarrow.parquet as pq

ROW = {
    "id": "one", "backend": "vllm", "backend_version": "0.15.1", "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "system": "h100_sxm", "precision": "fp8", "mode": "agg", "isl": 256, "osl": 16, "tp_size": 1, "pp_size": 1,
    "attention_dp_size": None, "moe_tp_size": 1, "moe_ep_size": 1, "concurrency": 4, "silicon_ttft_ms": 40.0,
    "silicon_tpot_ms": 5.0, "source": "inferencex_csv_2026-04-06", "group": "g1", "primary": True, "flags": "",
}


def write(path, *changes, without=()):
    """A table of rows that differ from `ROW` by *changes*, without some columns."""
    rows = [{key: value for key, value in (ROW | change).items() if key not in without} for change in changes]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path
