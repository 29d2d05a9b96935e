"""What the driver says of the GPU of this machine."""

from subprocess import SubprocessError, run


def asked(what: str) -> str:
    """Answer a query of nvidia-smi, such as "name" or "driver_version", for the first GPU; empty without a driver."""
    try:
        told = run(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader", "-i", "0"],
                   capture_output=True, check=True, encoding="utf-8", timeout=10)
    except (OSError, SubprocessError):
        return ""
    return told.stdout.strip()
