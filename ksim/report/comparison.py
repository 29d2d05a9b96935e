"""Compare two saved runs as wholes: the settings in which they differ, and their numbers."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from ksim.foundation.errors import ConfigError, DataError
from ksim.results.metrics import Summary

__all__ = ["MISSING", "Whole", "changed"]

#: The value of a key that a scenario does not have.
MISSING = None


@frozen(eq=False)
class Whole:
    """The run in `directory`: its numbers, and its `settings` by dotted keys; None if its scenario file is missing."""

    directory: Path
    summary: Summary
    settings: Mapping[str, Any] | None

    @classmethod
    def read(cls, directory: Path) -> "Whole":
        """Read what `Result.save` or `stream` wrote.

        Raises ConfigError if there is no run, DataError if files are damaged.
        """
        try:
            text = (directory / "summary.json").read_bytes()
        except OSError:
            raise ConfigError(str(directory), "there is no run; name a directory that `ksim run -o` has written") from (
                None)
        try:
            summary = json.loads(text)
        except ValueError:
            summary = None
        if not isinstance(summary, dict):
            raise DataError(str(directory / "summary.json"), "is not the summary of a run; run it again")
        return cls(directory, summary, _settings(directory / "scenario.toml"))


def changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys whose values differ, with both values; `MISSING` stands for a missing key.

    A plug-in may be a name in one scenario and a table with options in the other; then its name is compared.
    """
    one, other = _named(one, other), _named(other, one)
    return {key: (one.get(key, MISSING), other.get(key, MISSING)) for key in dict.fromkeys((*one, *other))
            if one.get(key, MISSING) != other.get(key, MISSING)}


def _named(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """*one*, with ``key.name`` in place of ``key`` where *other* has that."""
    return {f"{key}.name" if f"{key}.name" in other else key: value for key, value in one.items()}


def _settings(path: Path) -> Mapping[str, Any] | None:
    try:
        return dict(_flat(tomllib.loads(path.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(str(path), f"cannot be read as a scenario: {error}") from None


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value
