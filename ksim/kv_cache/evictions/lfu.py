"""What the fewest requests started from goes first, then the least recently used."""

from ksim.kv_cache.evictions import Tracked

__all__ = ["lfu"]


def lfu(node: Tracked) -> tuple[int, int]:
    return node.hits, node.last_use
