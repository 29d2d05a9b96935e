"""Evictions: what of that which nobody uses should be lost first.

An eviction is one key function.  It is asked for a node's key when the last
request that uses the node leaves it, and the smallest goes first; equal keys go
in the order in which they became free.  Blocks that hold nothing that can be
found again always go before.  To add one, add a file with such a function:

    def lru(node):
        return node.last_use

What it can look at is in `Tracked`.  In vLLM's cache a node is a block, in
SGLang's a leaf of the tree: a run of tokens that nothing cached follows.  Keys
must be comparable with each other.

One from elsewhere is named ``package.module:function``, or is a class with
options that is called in the same way.
"""

from typing import Any, Protocol


class Tracked(Protocol):
    """A node, and its past in ticks: one for each request that starts, finishes, or has tokens entered."""

    @property
    def depth(self) -> int:
        """Tokens from the beginning of the prompt to its end."""
        ...

    @property
    def created(self) -> int:
        """When its tokens were entered."""
        ...

    @property
    def last_use(self) -> int:
        """When a request last started from it, entered it, or finished with it."""
        ...

    @property
    def hits(self) -> int:
        """How many requests have started from it."""
        ...


class Eviction(Protocol):
    def __call__(self, node: Tracked, /) -> Any: ...
