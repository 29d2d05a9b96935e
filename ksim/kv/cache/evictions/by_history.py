"""Evictions by what has happened to a node."""

from ksim.kv.cache.evictions import Tracked

__all__ = ["lru", "mru", "lfu", "slru", "fifo", "filo", "deepest_first", "vllm"]


def lru(node: Tracked) -> float:
    """The least recently used goes first: SGLang's default."""
    return node.last_use


def mru(node: Tracked) -> float:
    """The most recently used goes first: for loops over more prefixes than fit."""
    return -node.last_use


def lfu(node: Tracked) -> tuple[float, float]:
    """What the fewest requests started from goes first, then the least recently used."""
    return node.hits, node.last_use


def slru(node: Tracked) -> tuple[bool, float]:
    """What was used once goes before what was used again, each the least recently used first."""
    return node.hits >= 2, node.last_use


def fifo(node: Tracked) -> float:
    """What was published first goes first, however often it was used."""
    return node.created


def filo(node: Tracked) -> float:
    """What was published last goes first."""
    return -node.created


def deepest_first(node: Tracked) -> tuple[float, float]:
    """What is farthest from the beginning of its prompt goes first, then the least recently used."""
    return -node.depth, node.last_use


def vllm(node: Tracked) -> tuple[()]:
    """What became free first goes first, and of a request's blocks the last: vLLM's free-queue order.

    Look at nothing: equal keys go in the order in which they became free.
    """
    return ()
