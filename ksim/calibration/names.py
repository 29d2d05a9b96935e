"""Names of GPUs and number formats in tables and drivers, and ksim's names for them."""

import re
from subprocess import SubprocessError, run

from ksim.foundation.catalog import entries

#: The words that must all be in a name, and the catalogue's name of that GPU; the first entry that fits counts.
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
    """Return the catalogue's name of the GPU called *name*, such as "h200_sxm" or "NVIDIA H200"; None if it has none.

    Tables that say a100_sxm mean the one with 80 GB.
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    joined = " ".join(words)
    if name in (known := entries("gpus")):
        return name
    for needed, known_as in _GPUS:
        if all(word in words or (len(word) > 3 and word in joined) for word in needed):
            return known_as if known_as in known else None
    return None


def format_name(name: str) -> str:
    """Return ksim's name of a number format; unknown names stay as they are."""
    return _FORMATS.get(name, name)


def nvidia_smi(query: str) -> str:
    """Return what nvidia-smi answers to *query*, such as "name", for this machine's first GPU; "" without a driver."""
    try:
        answer = run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", "0"],
                     capture_output=True, check=True, encoding="utf-8", timeout=10)
    except (OSError, SubprocessError):
        return ""
    return answer.stdout.strip()
