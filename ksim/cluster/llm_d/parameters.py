"""Parameters as llm-d's YAML spells them, such as maxTTFTPenaltyMs, to attrs classes and their fields."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from attrs import Attribute, fields

from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError, UnknownKey

__all__ = ["key_of", "made"]

T = TypeVar("T")


def key_of(field: "Attribute[Any]") -> str:
    """How YAML spells *field*: in camel case, unless its metadata have a `key`."""
    return str(field.metadata.get("key") or re.sub(r"_(\w)", lambda match: match[1].upper(), field.name))


def made(cls: type[T], table: Any, where: str, **given: Any) -> T:
    """Build *cls* from *table*, whose keys are in camel case; what is *given* is none of its keys.

    Raises ConfigError that names *where* and the key.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(where, f"expected a table of keys and values, not {table!r}")
    names = {key_of(field): field.name for field in fields(cls) if field.init and field.name not in given}  # type: ignore[arg-type]
    for key in table:
        if key not in names:
            raise _unknown(where, str(key), [*names])
    try:
        return structure(cls, {names[key]: value for key, value in table.items()} | given)
    except ConfigError as error:
        path, problem = error.args
        for key, name in sorted(names.items(), key=lambda item: -len(item[1])):
            path, problem = (re.sub(rf"\b{name}\b", key, text) for text in (path, problem))
        raise type(error)(where if path == cls.__name__ else f"{where}.{path}", problem) from None


def _unknown(where: str, key: str, known: list[str]) -> ConfigError:
    close = get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UnknownKey(f"{where}.{key}", f"unknown key; {hint}" + (f"expected {', '.join(known)}" if known else
                                                                  "it takes none"))
