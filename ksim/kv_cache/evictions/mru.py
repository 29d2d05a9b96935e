"""The most recently used goes first: for loops over more prefixes than fit."""

from ksim.kv_cache.evictions import Tracked

__all__ = ["mru"]


def mru(node: Tracked) -> int:
    return -node.last_use
