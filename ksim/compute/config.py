"""A Hugging Face ``config.json``, and which of its keys an architecture has read."""

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from attrs import field, frozen

from ksim.compute.neutral_keys import MODELS, neutral
from ksim.foundation.errors import ConfigError

__all__ = ["MOST", "Config"]

T = TypeVar("T", int, bool, str, list[Any], dict[str, Any])
_WORDS = {int: "a whole number", bool: "true or false", str: "a text", list: "a list", dict: "a table"}

#: No model has larger numbers than these, and they would take for ever to work with.
MOST = 2**31
_MOST = {"num_hidden_layers": 2000, "num_experts": 2**16, "n_routed_experts": 2**16, "num_local_experts": 2**16}


@frozen
class Config:
    """A Hugging Face ``config.json`` or, with the key as `place`, a table in it; `name` is for messages.

    It knows which keys its methods were asked for, so that `check_all_read` can refuse the others.
    """

    name: str
    table: Mapping[str, Any]
    place: str = ""
    _read: set[str] = field(factory=set, init=False, eq=False, repr=False)
    _parts: dict[str, "Config"] = field(factory=dict, init=False, eq=False, repr=False)

    def value(self, key: str) -> Any:
        """What is under *key*, of whatever type; None where it is absent."""
        self._read.add(key)
        return self.table.get(key)

    def need(self, key: str, default: int = 0) -> int:
        """The positive whole number under *key*, or *default* where it is absent or null.

        Raises ConfigError for another value, for one larger than any model has, or if there is neither value nor
        default.
        """
        value, most = self.get(key, default), _MOST.get(key, MOST)
        if value < 1:
            problem = "is missing" if self.table.get(key) is None else f"expected a positive whole number, not {value}"
            raise ConfigError(f"{self.name}: {key}", problem)
        if value > most:
            raise ConfigError(f"{self.name}: {key}", f"{value} is more than any model has; the most is {most}")
        return value

    def count(self, key: str) -> int:
        """The whole number under *key*, which may be 0 and is where it is absent; raises ConfigError for a negative."""
        if (value := self.get(key, 0)) < 0:
            raise ConfigError(f"{self.name}: {key}", f"expected a whole number from 0, not {value}")
        return value

    def factor(self, key: str) -> float:
        """The positive number under *key*, 1 where it is absent; raises ConfigError for another value."""
        value = self.value(key)
        if value is None:
            return 1.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST:
            raise ConfigError(f"{self.name}: {key}", f"expected a positive number, not {value!r}")
        return float(value)

    def part(self, key: str) -> "Config":
        """The table under *key*, empty where it is absent; raises ConfigError for another value."""
        if key not in self._parts:
            self._parts[key] = Config(f"{self.name}: {key}", self.get(key, {}),
                                      key if self.place in MODELS else self.place)
        return self._parts[key]

    def joined(self, key: str, outside: Collection[str]) -> "Config":
        """The table under *key* with those of the keys *outside* it that it lacks; `Config` itself without one."""
        if not self.get(key, {}):
            return self
        if key not in self._parts:
            beside = {name: self.value(name) for name in outside if name in self.table}
            self._parts[key] = Config(self.name, {**beside, **self.table[key]})
        return self._parts[key]

    def under(self, names: Mapping[str, str]) -> "Config":
        """The same config with other *names* for some keys, which are those that other families have."""
        return self.instead({names.get(key, key): value for key, value in self.table.items()})

    def instead(self, table: Mapping[str, Any]) -> "Config":
        """A config with the content *table*, which says the same in other words and is read in place of this one."""
        copy = self._parts[""] = Config(self.name, table, self.place)
        copy._read.update(self._read)
        self._read.update(self.table)
        return copy

    def texts(self, key: str) -> list[str]:
        """The list of texts under *key*, empty where it is absent; raises ConfigError for another value."""
        texts = self.get(key, [])
        if strangers := [value for value in texts if not isinstance(value, str)]:
            raise ConfigError(f"{self.name}: {key}", f"expected texts, not {strangers[0]!r}")
        return texts

    def get(self, key: str, default: T) -> T:
        """The value under *key*, or *default* where it is absent or null; raises ConfigError for another type."""
        value = self.value(key)
        if value is None:
            return default
        if type(value) is not type(default):
            raise ConfigError(f"{self.name}: {key}", f"expected {_WORDS[type(default)]}, not {value!r}")
        return value

    def check_all_read(self) -> None:
        """Raise ConfigError that names all keys that no method was asked for and whose values may mean something.

        A key whose value is null says nothing; `ksim.compute.neutral_keys` lists those without meaning for cost.
        """
        unread = list(self._unread())
        if len(unread) == 1:
            (place, value, close), = unread
            raise ConfigError(place, f"ksim does not know what {_short(value)} changes in a model of this family"
                              + (f"; did you mean {close!r}?" if close else "")
                              + "; where it changes neither kernels nor weights, leave it out of a copy, else write a"
                                " family that reads it (docs/models.md, What a config may say)")
        if unread:
            listed = ", ".join(f"{place.removeprefix(self.name)[2:]} = {_short(value)}"
                               + (f" (did you mean {close!r}?)" if close else "") for place, value, close in unread)
            raise ConfigError(self.name, f"ksim does not know what {len(unread)} keys change in a model of this family:"
                                         f" {listed}; leave those that change neither kernels nor weights out of a"
                                         " copy, and write a family that reads the others (docs/models.md, What a"
                                         " config may say)")

    def _unread(self) -> Iterator[tuple[str, Any, str]]:
        """Keys that may mean something and were not read: where they are, what they say, and which one may be meant."""
        for key, value in self.table.items():
            if key not in self._read and value is not None and not neutral(self.place, key, value):
                close = get_close_matches(key, self._read, n=1, cutoff=0.85)
                yield f"{self.name}: {key}", value, close[0] if close else ""
        for part in self._parts.values():
            yield from part._unread()


def _short(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 40 else f"{written[:37]}..."
