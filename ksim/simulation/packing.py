"""How engines are packed onto equal nodes: which GPUs each of them has."""

from collections.abc import Sequence

__all__ = ["pack"]


def pack(sizes: Sequence[int], per_node: int) -> tuple[list[int], int]:
    """The first GPU of each of the engines with so many GPUs, and how many GPUs they reach over.

    Engines lie in order.  One that fits into a node never straddles two, and one that does not begins with a node.
    """
    firsts, free = [], 0
    for size in sizes:
        left = per_node - free % per_node
        if left < size and left < per_node:
            free += left
        firsts.append(free)
        free += size
    return firsts, free
