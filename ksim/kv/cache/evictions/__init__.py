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

from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from attrs import define, field
from sortedcontainers import SortedDict

from ksim.foundation.errors import ConfigError


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
    def last_use(self) -> float:
        """When a request last started from it, published it, or finished with it; in SGLang's radix cache, also when
        one that waits last looked it up."""
        ...

    @property
    def hits(self) -> int:
        """How many requests have started from it; in SGLang's radix cache, how many have published it."""
        ...


class Eviction(Protocol):
    def __call__(self, node: Tracked, /) -> Any: ...


T = TypeVar("T")


@define(eq=False)
class EvictionQueue(Generic[T]):
    """A priority queue of items by the key of their node, smallest first; equal keys in order of arrival.

    Raises ConfigError for a key function that fails, or whose keys cannot be compared.
    """

    eviction: Eviction
    _queue: "SortedDict[Any, T]" = field(factory=SortedDict)
    _keys: dict[T, tuple[Any, int]] = field(factory=dict)
    _arrivals: "count[int]" = field(factory=count)

    def add(self, item: T, node: Tracked) -> None:
        """Queue *item* by the key that the eviction computes from *node*."""
        try:
            key = self.eviction(node)
            entry = self._keys[item] = key, next(self._arrivals)
            self._queue[entry] = item
        except Exception as error:  # show users whatever their function raised
            raise ConfigError(self._name(), f"{type(error).__name__}: {error}") from error
        if key != key:  # noqa: PLR0124 - only NaN differs from itself
            raise ConfigError(self._name(), "a key is not a number")

    def discard(self, item: T) -> None:
        """Remove *item* if it is queued."""
        if entry := self._keys.pop(item, None):
            del self._queue[entry]

    def pop(self) -> T:
        """Remove and return the first item; the queue must not be empty."""
        item: T = self._queue.popitem(0)[1]
        del self._keys[item]
        return item

    def __contains__(self, item: object) -> bool:
        return item in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def _name(self) -> str:
        return f"eviction {getattr(self.eviction, '__name__', type(self.eviction).__name__)}"
