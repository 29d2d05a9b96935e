"""What is farthest from the beginning of its prompt goes first, then the least recently used."""

from ksim.kv_cache.evictions import Tracked

__all__ = ["deepest_first"]


def deepest_first(node: Tracked) -> tuple[int, int]:
    return -node.depth, node.last_use
