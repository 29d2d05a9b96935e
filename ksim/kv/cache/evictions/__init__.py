"""Evictions: which cached content without users is lost first.

An eviction is one key function.  It is called with a node when the last request
that uses the node leaves it.  The smallest key is evicted first; equal keys go
in the order in which their nodes became free.  Blocks without reusable content
always go before.  To add an eviction, add such a function to `by_history` or in
a file of its own:

    def lru(node):
        return node.last_use

`Tracked` has what it can look at.  In vLLM's cache a node is a block.  In
SGLang's it is a leaf of the tree: a run of tokens that no other cached tokens
follow.  Keys must be comparable with each other.

One from elsewhere is named ``package.module:function``, or is a class with
options that is called in the same way.
"""

from typing import Any, Protocol


class Tracked(Protocol):
    """A node and its history, in ticks: one per request that starts, finishes, or publishes tokens."""

    @property
    def depth(self) -> int:
        """Tokens from the beginning of the prompt to its end."""
        ...

    @property
    def created(self) -> int:
        """When its tokens were published."""
        ...

    @property
    def last_use(self) -> int:
        """When a request last started from it, published it, or finished with it."""
        ...

    @property
    def hits(self) -> int:
        """How many requests have started from it."""
        ...


class Eviction(Protocol):
    def __call__(self, node: Tracked, /) -> Any: ...
