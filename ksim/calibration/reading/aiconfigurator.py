"""NVIDIA AIConfigurator's tables, as shipped and collected (``gemm_perf.txt``, ``context_attention_perf.parquet`` ...).

Their `latency` is in milliseconds, and the `message_size` of collectives counts elements.
"""

import numpy as np

from ksim.calibration.datasheet import format_name
from ksim.calibration.measurements import MISSING, Measurements
from ksim.calibration.reading import tables
from ksim.calibration.reading.frames import Frame

_NAMES = {
    "framework": "backend", "device": "gpu", "kernel_source": "kernel", "batch_size": "batch",
    "num_key_value_heads": "num_kv_heads", "window_size": "window", "kv_cache_dtype": "kv_dtype",
    "num_tokens": "tokens", "hidden_size": "hidden", "inter_size": "inter", "num_experts": "experts",
    "moe_tp_size": "tp", "tp_size": "tp", "moe_ep_size": "ep", "num_gpus": "gpus", "op_name": "op",
    **dict.fromkeys(("gemm_dtype", "attn_dtype", "moe_dtype", "nccl_dtype", "allreduce_dtype", "mla_dtype"), "dtype"),
}
#: Columns that name a family: some tables differ in nothing else.
_FAMILIES = {"gemm_dtype": "gemm", "attn_dtype": "attention", "moe_dtype": "moe", "mla_dtype": "mla",
             "nccl_dtype": "collective", "allreduce_dtype": "collective"}
_BYTES = {"fp8": 1, "int8": 1, "bf16": 2, "fp16": 2, "fp32": 4}


def recognises(frame: Frame) -> bool:
    return {"framework", "op_name", "latency"} <= {*frame.names}


def measurements(frame: Frame) -> list[Measurements]:
    """Return the measurements in *frame*; raise what `tables.measurements` raises."""
    renamed = frame.renamed(_NAMES).having("latency_us", frame.numbers("latency") * 1e3)
    if "message_size" in renamed:
        renamed = _with_bytes(renamed)
    elif "step" in renamed:
        renamed = _with_lengths(renamed)
    return tables.measurements(renamed, next((family for name, family in _FAMILIES.items() if name in frame), ""))


def _with_bytes(frame: Frame) -> Frame:
    sizes = np.array([_BYTES.get(format_name(name), 2) for name in frame.texts("dtype")], dtype=np.int64)
    elements = frame.whole("message_size")
    return frame.having("bytes", np.where(elements > 0, elements * sizes, MISSING))


def _with_lengths(frame: Frame) -> Frame:
    """Add the lengths of attention: a row has `isl` new tokens after `step`, one in generation.

    vLLM's collector calls its bfloat16 kernels float16.
    """
    new, before = frame.whole("isl"), frame.whole("step")
    lengths = np.where((new > 0) & (before >= 0), new + before, MISSING)
    generation = any("generation" in op for op in np.unique(frame.texts("op")))
    formats = frame.texts("kv_dtype")
    frame = frame.renamed({"kv_dtype": "_named"})
    frame = frame.having("kv_dtype", np.where(formats == "float16", "bfloat16", formats))
    if "num_kv_heads" not in frame:
        phases = np.full(len(frame), "generation" if generation else "context")
        return frame.having("phase", phases).having("q_len", new).having("kv_len", lengths)
    return frame.having("kv_len", lengths) if generation else frame.having("prefix", before)
