"""Names of GPUs and number formats in tables and drivers, and ksim's names for them."""

from subprocess import SubprocessError, run

from ksim.foundation.catalog import entries, spelled

#: Names that tables have, and no driver.
_TABLES = {"a100_sxm": "a100-80g"}
_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float": "fp32", "float32": "fp32", "nvfp4": "fp4",
            "float8": "fp8", "fp8_e4m3": "fp8", "int4_wo": "int4_w4a16", "int8_wo": "int8_w8a16",
            "w4a16_mxfp4": "fp4_w4a16", "w4a8_mxfp4_mxfp8": "fp4_w4a8", "fp8_static": "fp8", "sq": "int8"}


def gpu_name(name: str) -> str | None:
    """Return the catalogue's name of the GPU called *name*, such as "h200_sxm" or "NVIDIA H200"; None if it has none.

    Tables that say a100_sxm mean the one with 80 GB.
    """
    found = _TABLES.get(name) or spelled("gpus", name)
    return found if found in entries("gpus") else None


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
