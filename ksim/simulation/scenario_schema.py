"""The JSON Schema of scenario files, with which editors complete keys and mark mistakes.

It accepts every scenario that ksim accepts, and some more: rules about several keys at once are ksim's alone.  Like the
tables of docs/scenario.md and the help of the flags, it comes from the documentation of the keys (foundation/keys.py).
`python -m benchmarks.reference` writes the file that is kept.
"""

import inspect
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from ksim.foundation import catalog
from ksim.foundation.config import Choice, kinds_of, plain
from ksim.foundation.keys import Key, keys
from ksim.simulation.scenario import Scenario

#: Where the schema is kept, and by which name others refer to it.
FILE = catalog.DATA / "scenario.schema.json"
ID = "https://raw.githubusercontent.com/ksim-project/ksim/main/ksim/data/scenario.schema.json"

Schema = dict[str, Any]

_SCALARS: Mapping[Any, str] = {int: "integer", float: "number", bool: "boolean", str: "string", Path: "string"}
_BOUNDS = {">": "exclusiveMinimum", ">=": "minimum", "<": "exclusiveMaximum", "<=": "maximum"}
#: Texts that `foundation.units.quantity` accepts: a number, usually with a unit.
_QUANTITY: Schema = {"type": "string", "pattern": r"^\s*[-+]?[\d.]"}
#: A plug-in that is not in ksim's folders, and any at all.
_OUTSIDE: Schema = {"type": "string", "pattern": r"^[^:]+:[^:]+$"}
_CHOICE: Schema = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["name"],
                                                  "properties": {"name": {"type": "string"}}}]}
_TIME: Schema = {"type": "string", "pattern": r"^\s*[-+]?[\d.][-+\d.eE]*\s*[kMGTPmunp]?s\s*$"}


def schema() -> Schema:
    """The schema of a scenario file, in draft 7, which TOML editors understand."""
    tables: dict[str, Schema] = {}
    whole = _table(Scenario, tables)
    return {"$schema": "http://json-schema.org/draft-07/schema#", "$id": ID, "title": "ksim scenario",
            "description": "What ksim simulates, on what, under which load: docs/scenario.md.", **whole,
            "definitions": dict(sorted(tables.items()))}


def _table(cls: type, tables: dict[str, Schema]) -> Schema:
    """The schema of the table from which the attrs class *cls* is made; schemas of inner tables go into *tables*."""
    required = [key.name for key in keys(cls) if key.required]
    if any(key.name == "kind" for key in keys(cls)):
        required.append("kind")
    return {"type": "object", "additionalProperties": False, **({"required": required} if required else {}),
            "properties": {key.name: _key(key, tables) for key in keys(cls)}}


def _key(key: Key, tables: dict[str, Schema]) -> Schema:
    said: Schema = {"description": key.described} if key.text else {}
    default = None if attrs.has(key.kind) or key.part_of or kinds_of(key.kind) else plain(key.default)
    if default is not None and not key.required:
        said["default"] = default
    if example := key.labels.get("Example"):
        said["examples"] = [tomllib.loads(f"example = {example}")["example"]]
    value = _value(key, tables)
    return {**({"allOf": [value]} if "$ref" in value else value), **said}


def _value(key: Key, tables: dict[str, Schema]) -> Schema:
    """The schema of a key's value."""
    if key.choices:
        return {"enum": list(key.choices)}
    if key.timed and key.quantity:
        return {"anyOf": [{"const": 0}, _TIME]}
    if key.quantity:
        one = [{"type": "number", **_limits(key)}, _QUANTITY]
        table = [{"type": "object", "additionalProperties": {"anyOf": one}}] if key.tabled else []
        return {"anyOf": [*one, *table]}
    if key.kind is Choice:
        return _plugin(key, tables) if key.folders else _CHOICE
    if key.names:
        changed = [_figures(key.part_of)] if key.part_of else []
        named = {"anyOf": [{"enum": key.names}, {"type": "string"}, *changed]}
        return {"type": "array", "items": named} if get_origin(key.kind) is tuple else named
    return {**_of_type(key.part_of or key.kind, tables), **_limits(key)}


def _figures(cls: type) -> Schema:
    """A table that names a data file, and states some of its figures anew."""
    figures = {key.name: {"anyOf": [{"type": "number"}, _QUANTITY]} if key.quantity else
               {"type": _SCALARS.get(key.kind, "object")} for key in keys(cls)}
    return {"type": "object", "additionalProperties": False,
            "properties": {**figures, "tdp": _QUANTITY, "name": {"type": "string"}}}


def _limits(key: Key) -> Schema:
    return {_BOUNDS[sign]: bound for sign, bound in key.bounds if abs(bound) != float("inf")}


def _plugin(key: Key, tables: dict[str, Schema]) -> Schema:
    """A plug-in, or what stands for none where that is the default."""
    named, default = {"$ref": f"#/definitions/{_plugins(key.folders[0], tables)}"}, plain(key.default)
    return named if default is None or default in key.names else {"anyOf": [{"const": default}, named]}


def _plugins(folder: str, tables: dict[str, Schema]) -> str:
    """The definition of a plug-in of *folder*: its name, or a table with its name and options, or one from elsewhere.
    """
    if folder not in tables:
        tables[folder] = {}
        own = [_options(name, catalog.find(folder, name), tables) for name in catalog.names(folder)]
        outside = {"type": "object", "required": ["name"], "properties": {"name": _OUTSIDE}}
        tables[folder] = {"anyOf": [{"enum": catalog.names(folder)}, _OUTSIDE, *own, outside]}
    return folder


def _options(name: str, made: Any, tables: dict[str, Schema]) -> Schema:
    """A table of the plug-in *name*, which is *made* from its options."""
    options: Schema = {}
    if attrs.has(made):
        options = {key.name: {} if key.field.converter and not key.quantity else _key(key, tables)
                   for key in keys(made)}
    elif isinstance(made, type):
        options = {name: {} for name in inspect.signature(made).parameters}
    return {"type": "object", "required": ["name"], "additionalProperties": False,
            "properties": {"name": {"const": name}, **options}}


def _of_type(kind: Any, tables: dict[str, Schema]) -> Schema:
    if kinds := kinds_of(kind):
        return {"anyOf": [_of_type(member, tables) for member in kinds.values()]}
    if attrs.has(kind):
        if kind.__name__ not in tables:
            tables[kind.__name__] = {}
            tables[kind.__name__] = _table(kind, tables)
        table = {"$ref": f"#/definitions/{kind.__name__}"}
        listed = next((key for key in keys(kind) if key.name == getattr(kind, "listed", "")), None)
        return {"anyOf": [table, _of_type(listed.kind, tables)]} if listed else table
    return _of_parts(get_origin(kind), get_args(kind), tables) or (
        {"type": _SCALARS[kind]} if kind in _SCALARS else {})  # any other type accepts anything


def _of_parts(origin: Any, parts: tuple[Any, ...], tables: dict[str, Schema]) -> Schema:
    """The schema of a type made of other types; empty for any other type."""
    if origin is Literal:
        return {"const": parts[0]} if len(parts) == 1 else {"enum": list(parts)}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": _of_type(parts[0], tables)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _of_type(parts[1], tables)}
    if origin in (Union, UnionType):
        return {"anyOf": [_of_type(part, tables) for part in parts]}
    return {}
