"""What was published first goes first, however often it was used."""

from ksim.kv_cache.evictions import Tracked

__all__ = ["fifo"]


def fifo(node: Tracked) -> int:
    return node.created
