"""Plain tables (from TOML) to frozen attrs classes and back, with errors that name the key."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import (
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    StructureHandlerNotFoundError,
)

from ksim.foundation.errors import ConfigError, KsimError, UnknownKey, nearest
from ksim.foundation.files import number_hint
from ksim.foundation.units import DType, UnitKeys, key_of

T = TypeVar("T")
#: Whole numbers are less than this, as they are in arrays.
_INTEGERS = 2**63
#: How the problem of a key begins that no table has.
_UNKNOWN = "unknown key"
#: How an attrs validator names a field.
_FIELD = re.compile(r"'(\w+)'")
#: More keys than so many are not listed: a message has the nearest.
_MANY = 25


def flat(table: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys of *table* and their values, behind the *place* of the table itself."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


@attrs.frozen
class Choice:
    """A plug-in by name, with the values of its parameters."""

    name: str
    options: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    @classmethod
    def of(cls, value: Any) -> "Choice":
        """Return the choice that a name, a table with a name and options, or a choice stands for.

        Raises ValueError for anything else.
        """
        if isinstance(value, Choice):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            return cls(value["name"], {k: v for k, v in value.items() if k != "name"})
        raise ValueError(f"expected a name, or a table with a name and its options, not {value!r}")

    def __str__(self) -> str:
        said = ", ".join(f"{key}={value}" for key, value in flat(self.options))
        return f"{self.name} ({said})" if said else self.name


def _is_name(target: Any) -> bool:
    """Whether *target* is a name that may have options, `str | Choice | None`."""
    return {str, Choice} <= {*get_args(target)}


def _named(value: Any, _: Any) -> str | Choice | None:
    """A bare name stays a text, so that only one with options is a choice."""
    choice = None if value is None else Choice.of(value)
    return choice if choice is None or choice.options else choice.name


def _strict(kinds: tuple[type, ...], word: str) -> Any:
    """A hook that takes values of *kinds* only: nothing turns 3.7 into 3 or "false" into True."""

    def hook(value: Any, target: type) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"expected {word}, not {value!r}{number_hint(value, target) if kinds != (str,) else ''}")
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"expected {word} that is finite, not {value!r}")
        if isinstance(value, int) and not -_INTEGERS <= value < _INTEGERS:
            raise ValueError(f"{value} is out of range: it does not fit 64 bits")
        return target(value)

    return hook


def kinds_of(union: Any) -> dict[str, type]:
    """The classes of a union of tables that a `kind` tells apart, by that kind; empty for any other type."""
    members = get_args(union) if get_origin(union) in (Union, UnionType) else ()
    if not members or not all(attrs.has(member) and "kind" in attrs.fields_dict(member) for member in members):
        return {}
    return {str(attrs.fields_dict(member)["kind"].default): member for member in members}


def _by_kind(converter: Converter) -> Any:
    """A hook for unions of tables that a `kind` tells apart."""

    def hook(value: Any, union: Any) -> Any:
        kinds = kinds_of(union)
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if kind not in kinds:
            found = f"not {value!r}" if kind is None else f"and there is none called {kind!r}"
            raise ValueError(f"expected a table with kind = one of {', '.join(kinds)}, {found}")
        return converter.structure(value, kinds[kind])

    return hook


def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True, prefer_attrib_converters=True, omit_if_default=False)
    converter.register_structure_hook_func(lambda target: bool(kinds_of(target)), _by_kind(converter))
    converter.register_structure_hook_func(_is_name, _named)
    UnitKeys(converter, kinds_of).register()
    for target, kinds, word in ((int, (int,), "a whole number"), (float, (int, float), "a number"),
                                (bool, (bool,), "true or false"), (str, (str,), "a text")):
        converter.register_structure_hook(target, _strict(kinds, word))
    converter.register_structure_hook(Choice, lambda value, _: Choice.of(value))
    converter.register_structure_hook(DType, lambda value, _: DType.named(value))
    converter.register_structure_hook(Path, lambda value, _: Path(value))
    converter.register_unstructure_hook(DType, str)
    converter.register_unstructure_hook(Path, str)
    converter.register_unstructure_hook(
        Choice, lambda choice: {"name": choice.name, **choice.options} if choice.options else choice.name)
    return converter


_CONVERTER = _converter()


def structure(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Build *cls* from *table*, nested tables by the field types.

    Raises ConfigError that names *where* and the key: unknown, missing, of the wrong type or out of range.
    """
    try:
        return _CONVERTER.structure(table, cls)
    except KsimError:
        raise
    except Exception as error:
        path, problem = _first(error, cls)
        key = f"{where}: {path}" if where and path else where or path or cls.__name__
        raise (UnknownKey if problem.startswith(_UNKNOWN) else ConfigError)(key, problem) from None


def plain(value: Any) -> Any:
    """Return *value* as the tables, lists and scalars of TOML; keys without a value are left out."""
    return _without_none(_CONVERTER.unstructure(value))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value


def _first(error: BaseException, cls: Any) -> tuple[str, str]:
    """The key path and the message of the first thing wrong inside *error*."""
    if isinstance(error, ClassValidationError):
        cls = error.cl
        located, others = error.group_exceptions()
        # What is out of place says more than what is therefore missing.
        for other in others:
            if isinstance(other, ForbiddenExtraKeysError):
                return _unknown(other)
        return _of_keys(located, error.cl) if located else _explain(others[0], "", cls)
    if isinstance(error, IterableValidationError):
        located_items, loose = error.group_exceptions()
        if located_items:
            inner, item = located_items[0]
            path, problem = _explain(inner, "", item.type)
            if isinstance(item.index, str):  # the key of a table
                return _join(item.index, path, problem)
            return f"[{item.index}]{'.' if path and not path.startswith('[') else ''}{path}", problem
        return _explain(loose[0], "", cls)
    return _explain(error, "", cls)


def _of_keys(located: Sequence[tuple[Any, Any]], cls: Any) -> tuple[str, str]:
    """The first of errors that each have a key of *cls*; where it is missing, all that are."""
    inner, note = located[0]
    keys = {field.name: key_of(field) for field in attrs.fields(cls)}
    key = keys[note.name]
    missing = [keys[other.name] for error, other in located if isinstance(error, KeyError)]
    if len(missing) > 1 and key in missing:
        return ", ".join(missing), "are missing"
    return _join(key, *_explain(inner, key, note.type))


def _explain(error: BaseException, key: str, cls: Any) -> tuple[str, str]:
    if isinstance(error, ClassValidationError | IterableValidationError):
        return _first(error, cls)
    if isinstance(error, ForbiddenExtraKeysError):
        return _unknown(error)
    if isinstance(error, KsimError):
        return "", str(error)
    if isinstance(error, KeyError):
        missing = str(error.args[0])
        return ("" if missing == key else missing), "is missing"
    table = next((member for member in (cls, *get_args(cls)) if attrs.has(member)), None)
    if isinstance(error, StructureHandlerNotFoundError | TypeError | AttributeError) and table is not None:
        known = [key_of(field) for field in attrs.fields(table)]
        more = f" and {len(known) - _MANY} more" if len(known) > _MANY else ""
        return "", f"expected a table with {', '.join(known[:_MANY])}{more}"
    # attrs validators pass (message, attribute, ...): the message is what a user can read.
    return "", _by_key(str(error.args[0]) if error.args else str(error), table)


def _by_key(text: str, table: Any) -> str:
    """*text* of an attrs validator with keys for the names of a *table*'s fields, the first that it names."""
    keys = {field.name: key_of(field) for field in attrs.fields(table)} if table is not None else {}
    return _FIELD.sub(lambda found: f"'{keys.get(found[1], found[1])}'", text, count=1)


def _unknown(error: ForbiddenExtraKeysError) -> tuple[str, str]:
    known = [key_of(field) for field in attrs.fields(error.cl) if field.init]
    key = min(error.extra_fields)
    close = get_close_matches(key, known, n=1)
    if close and len(known) > _MANY:
        return key, f"{_UNKNOWN}; did you mean {close[0]!r}?"
    hint = f"did you mean {close[0]!r}? " if close else ""
    listed = ", ".join(known) if len(known) <= _MANY else nearest(key, known, "docs/scenario.md")
    return key, f"{_UNKNOWN}; {hint}expected {listed}"


def _join(head: str, path: str, problem: str) -> tuple[str, str]:
    return (f"{head}{path}" if path.startswith("[") else f"{head}.{path}" if path else head), problem
