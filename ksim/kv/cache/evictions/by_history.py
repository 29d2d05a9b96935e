"""Evictions by what has happened to a node."""

from ksim.kv.cache.evictions import Tracked

__all__ = ["lru", "mru", "lfu", "fifo", "deepest_first", "vllm"]


def lru(node: Tracked) -> int:
    """The least recently used goes first: SGLang's default."""
    return node.last_use


def mru(node: Tracked) -> int:
    """The most recently used goes first: for loops over more prefixes than fit."""
    return -node.last_use


def lfu(node: Tracked) -> tuple[int, int]:
    """What the fewest requests started from goes first, then the least recently used."""
    return node.hits, node.last_use


def fifo(node: Tracked) -> int:
    """What was published first goes first, however often it was used."""
    return node.created


def deepest_first(node: Tracked) -> tuple[int, int]:
    """What is farthest from the beginning of its prompt goes first, then the least recently used."""
    return -node.depth, node.last_use


def vllm(node: Tracked) -> tuple[()]:
    """What became free first goes first, and of a request's blocks the last: vLLM's free-queue order.

    Look at nothing: equal keys go in the order in which they became free.
    """
    return ()
