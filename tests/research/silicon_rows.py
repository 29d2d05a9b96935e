"""Tables of measured runs, like the public one, and of how they were deployed."""

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


#: What a table of worker counts says of a disaggregated run.
COUNTS = {"id": "one", "tier": "recipe", "spec_method": "none", "prefill_workers": 1, "prefill_gpus_per_worker": 4,
          "prefill_ep": 4, "prefill_dp_attention": True, "decode_workers": 4, "decode_gpus_per_worker": 8,
          "decode_ep": 8, "decode_dp_attention": False}


#: What a table of deployments says of a run whose engine prefills and decodes.
WHOLE = {"id": "one", "spec_method": "mtp", "tp": 8, "ep": 1, "dp_attention": False}


def join(path, *changes, of=None):
    """A table of worker counts whose rows differ from `COUNTS`, or from *of*, by *changes*."""
    rows = [(of or COUNTS) | change for change in changes]
    lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    path.write_text("\n".join([",".join(rows[0]), *lines]) + "\n")
    return path
