"""The least recently used goes first: SGLang's default."""

from ksim.kv_cache.evictions import Tracked

__all__ = ["lru"]


def lru(node: Tracked) -> int:
    return node.last_use
