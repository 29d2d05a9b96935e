"""What a run says of LoRA adapters: how often they were loaded, from where, and how long workers took over that."""

from typing import Any

from ksim.flow.events import AdapterLoaded
from ksim.flow.log import Log

__all__ = ["adapter_summary", "has_adapters"]


def has_adapters(log: Log) -> bool:
    """Whether any engine of the run has slots for adapters."""
    return any(built.max_loras for built in log.engines)


def adapter_summary(log: Log) -> dict[str, Any]:
    """The numbers of summary.json that runs with adapters have; none of other runs."""
    if not has_adapters(log):
        return {}
    loads = log.columns(AdapterLoaded)
    return {
        "max_lora": max(built.max_loras for built in log.engines),
        "lora_loads": len(loads["time"]),
        "lora_reads": int(loads["read"].sum()),
        "lora_load_seconds": float(loads["seconds"].sum()),
    }
