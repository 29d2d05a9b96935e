"""The order in which an eviction's key function gives up what nobody uses."""

from itertools import count
from typing import Any, Generic, TypeVar

from attrs import define, field
from sortedcontainers import SortedDict

from ksim.foundation.errors import ConfigError
from ksim.kv_cache.evictions import Eviction, Tracked

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
