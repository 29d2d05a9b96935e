"""TODO"""

import re
from subprocess import SubprocessError, run

from ksim.foundation.catalog import entries

#: Words that a name must hold, all of them, and the catalogue's name; the first that fits counts.
_GPUS = (
    (("rtx", "pro", "6000"), "rtx-pro-6000"), (("gb300",), "gb300"), (("gb200",), "gb200"), (("b300",), "b300"),
    (("b200",), "b200"), (("gh200",), "gh200"), (("h200",), "h200"), (("h100",), "h100"), (("h20",), "h20"),
    (("a100", "40gb"), "a100-40g"), (("a100", "pcie"), "a100-pcie"), (("a100",), "a100-80g"), (("l40s",), "l40s"),
    (("l4",), "l4"),
)
_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float": "fp32", "float32": "fp32", "nvfp4": "fp4",
            "float8": "fp8", "fp8_e4m3": "fp8", "int4_wo": "int4_w4a16", "int8_wo": "int8_w8a16",
            "w4a16_mxfp4": "fp4_w4a16", "w4a8_mxfp4_mxfp8": "fp4_w4a8", "fp8_static": "fp8", "sq": "int8"}


def gpu_name(name: str) -> str | None:
    """The catalogue's name of the GPU that is called *name*, such as "h200_sxm" or "NVIDIA H200"; None if it has none.

    A table that says a100_sxm means the one with 80 GB.
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    joined = " ".join(words)
    if name in (known := entries("gpus")):
        return name
    for needed, found in _GPUS:
        if all(word in words or (len(word) > 3 and word in joined) for word in needed):
            return found if found in known else None
    return None


def format_name(name: str) -> str:
    """ksim's name of a number format; names that it does not know stay as they are."""
    return _FORMATS.get(name, name)


def asked(what: str) -> str:
    """Answer a query of nvidia-smi, such as "name" or "driver_version", for the first GPU; empty without a driver."""
    try:
        told = run(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader", "-i", "0"],
                   capture_output=True, check=True, encoding="utf-8", timeout=10)
    except (OSError, SubprocessError):
        return ""
    return told.stdout.strip()
