"""What became free first goes first, and of a request's blocks the last: vLLM's free-queue order."""

from ksim.kv_cache.evictions import Tracked

__all__ = ["vllm"]


def vllm(node: Tracked) -> tuple[()]:
    """Look at nothing: equal keys go in the order in which they became free."""
    return ()
