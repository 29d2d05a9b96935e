"""The least recently used goes first: SGLang's default."""

from ksim.memory.evictions import Tracked

__all__ = ["lru"]


def lru(node: Tracked) -> int:
    return node.last_use
