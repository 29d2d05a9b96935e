"""In which order what nobody uses any more is lost, where a key function decides it."""

from itertools import count
from typing import Any, Generic, TypeVar

from attrs import define, field
from sortedcontainers import SortedDict

from ksim.foundation.errors import ConfigError
from ksim.kv_cache.evictions import Eviction, Tracked

T = TypeVar("T")


@define(eq=False)
class EvictionOrder(Generic[T]):
    """Things that can be lost, by the key of their node, smallest first; equal keys in order of their coming.

    Raises ConfigError for a key function that fails, or whose keys cannot be compared.
    """

    eviction: Eviction
    _queue: "SortedDict[Any, T]" = field(factory=SortedDict)
    _places: dict[T, tuple[Any, int]] = field(factory=dict)
    _ticket: "count[int]" = field(factory=count)

    def add(self, thing: T, node: Tracked) -> None:
        """Queue *thing*; *node* is what the eviction looks at."""
        try:
            key = self.eviction(node)
            place = self._places[thing] = key, next(self._ticket)
            self._queue[place] = thing
        except Exception as error:  # whatever a user's function raises is the user's to see
            raise ConfigError(self._name(), f"{type(error).__name__}: {error}") from error
        if key != key:  # noqa: PLR0124 - only what is not a number differs from itself
            raise ConfigError(self._name(), "a key is not a number")

    def discard(self, thing: T) -> None:
        """Take *thing* out, if it is in."""
        if place := self._places.pop(thing, None):
            del self._queue[place]

    def pop(self) -> T:
        """Take out the first; there must be one."""
        thing: T = self._queue.popitem(0)[1]
        del self._places[thing]
        return thing

    def __contains__(self, thing: object) -> bool:
        return thing in self._places

    def __len__(self) -> int:
        return len(self._places)

    def _name(self) -> str:
        return f"eviction {getattr(self.eviction, '__name__', type(self.eviction).__name__)}"
