"""The JSON Schema of scenario files, with which editors complete keys and mark mistakes, and a commented scenario to
start from.

The schema accepts every scenario that ksim accepts, and some more: rules about several keys at once are ksim's alone.
Like the tables of docs/scenario.md and the help of the flags, both come from the documentation of the keys
(foundation/keys.py).  `python -m benchmarks.reference` writes the file that is kept.
"""

import inspect
import json
import os
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf, log2
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs
from attrs import frozen

from ksim.foundation import catalog
from ksim.foundation.config import Choice, kinds_of, plain
from ksim.foundation.errors import DoesNotFit
from ksim.foundation.keys import Key, keys
from ksim.scenario.defaults import Defaults, Deployment, Derived
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.specs.hardware import Footprint, PowerSettings
from ksim.specs.pools import PoolSettings
from ksim.specs.settings import EngineSettings, Slo
from ksim.workload.replay import Replay, Workload
from ksim.workload.synthetic import Synthetic

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
        return {"type": "array", "items": _CHOICE if parts[0] is Choice else _of_type(parts[0], tables)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _of_type(parts[1], tables)}
    if origin in (Union, UnionType):
        return {"anyOf": [_of_type(part, tables) for part in parts]}
    return {}


#: The kind of service that a scenario is about if nobody says: a file of ksim/data/templates.
SERVICE = "chat"
#: Where the full context does not fit, it is cut to so many tokens.
CONTEXT = 16_384
_SECTIONS: Mapping[str, type] = {"serve": EngineSettings, "slo": Slo, "power": PowerSettings, "energy": Footprint,
                                 "workload": Workload, "workload.synthetic": Synthetic}
_WIDTH = 110


def starter(model: str, gpu: str, tensor_parallel_size: int | None = None, folder: Path | None = None,
            template: str = SERVICE) -> str:
    """The text of a scenario file for *folder*: *model* on *gpu*, under the load of a *template*.

    *tensor_parallel_size* is by default the smallest with which the model and a request of its whole context fit.  The
    context is cut where a node has too little memory for it.  Raises UnknownName for a name that the catalogue lacks,
    DoesNotFit for too few GPUs, and ConfigError for settings that the engine would refuse.
    """
    table = catalog.load("templates", template)
    deployment, asked = _fitting(model, gpu, tensor_parallel_size, table)
    active = _active(table, {"model": _seen_from(folder, model), "gpu": _seen_from(folder, gpu)}, deployment, asked)
    defaults = Defaults(EngineSettings(**asked), deployment.version, deployment.model, deployment.gpu).explain()
    derived = {row.setting: row for row in defaults if row.setting not in asked}
    sections = [_Section("", Scenario, active[""], {}), *(
        _Section(name, cls, active.get(name, {}), derived if name == "serve" else {})
        for name, cls in _SECTIONS.items())]
    lines = [_HEAD.format(schema=FILE.as_uri()), *(line for section in sections for line in section.lines()),
             "", "# A recorded trace, in place of [workload.synthetic]:", "#[workload.replay]",
             *_Section("workload.replay", Replay, {}, {}).keys(),
             "", "# A fleet: pools of engines, each with a table of its own:",
             "#[pools.NAME]", *_Section("pools", PoolSettings, {}, {}).keys(), *_pools(table)]
    return "\n".join(lines) + "\n"


def summary(template: str) -> str:
    """What the *template* is for: the comment in the first line of its file."""
    with catalog.path_of("templates", template).open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").strip()


def _active(table: Mapping[str, Any], named: dict[str, Any], deployment: Deployment, asked: dict[str, Any]
            ) -> dict[str, Mapping[str, Any]]:
    """The keys that are set, by section: those of the template's *table*, of the *named* parts and those *asked* for.
    """
    load = table["workload"]["synthetic"]
    load = {**load, "max_tokens": min(load["max_tokens"], deployment.serve.max_model_len or inf)}
    top = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    nodes = _nodes(table, deployment)
    return {"": {**named, **top, **({"nodes": nodes} if nodes > deployment.system.nodes else {})},
            "serve": asked, "slo": table.get("slo", {}), "workload.synthetic": load}


def _nodes(table: Mapping[str, Any], deployment: Deployment) -> int:
    """How many nodes the pools of the template's *table* take, if each replica is a *deployment*."""
    replicas: int = sum(pool["replicas"] for pool in table.get("pools", {}).values())
    gpus = replicas * deployment.serve.gpus
    return ceil(gpus / deployment.system.gpus_per_node)


def _pools(table: Mapping[str, Any]) -> Iterator[str]:
    for name, pool in table.get("pools", {}).items():
        yield from ("", f"[pools.{name}]", *(f"{key} = {toml(value)}" for key, value in pool.items()))


_HEAD = """\
#:schema {schema}
# A scenario: what is simulated, on what, under which load.  `ksim run` runs it as it is.
# A key that is commented out shows its default, or an example where the text above it says what the default is.
"""


def _seen_from(folder: Path | None, name: str) -> str:
    """*name* as a scenario in *folder* has to write it: a path from here becomes one from there."""
    return os.path.relpath(name, folder) if folder and catalog.is_file(name) else name


def _fitting(model: str, gpu: str, ranks: int | None, table: Mapping[str, Any]) -> tuple[Deployment, dict[str, Any]]:
    """The first deployment that fits, and the settings asked for, those of the template's *table* among them.

    Raises DoesNotFit where none does.
    """
    serve = table.get("serve", {})
    deployment = _deployment(model, gpu, serve)
    sizes = [ranks] if ranks else [2**power for power in range(1 + int(log2(deployment.system.gpus_per_node)))]
    choices: list[dict[str, Any]] = [{"tensor_parallel_size": size, **serve} for size in sizes]
    cut = {**choices[-1], "max_model_len": min(CONTEXT, deployment.model.max_length)}
    for asked in choices:
        if _fits(deployment := _deployment(model, gpu, asked)):
            return deployment, asked
    deployment = _deployment(model, gpu, cut)
    deployment.check_memory()
    return deployment, cut


def _fits(deployment: Deployment) -> bool:
    try:
        deployment.check_memory()
    except DoesNotFit:
        return False
    return True


def _deployment(model: str, gpu: str, serve: Mapping[str, Any]) -> Deployment:
    table = {"model": model, "gpu": gpu, "serve": serve, "workload": ANY_WORKLOAD}
    return Deployment.of(Scenario.of(table, "new"))


@frozen
class _Section:
    """A table of the file: the keys of `cls`, set where `active`, else as comments with the `derived` values."""

    name: str
    cls: type
    active: Mapping[str, Any]
    derived: Mapping[str, Derived]

    def lines(self) -> Iterator[str]:
        if self.name:
            yield from ("", f"[{self.name}]")
        yield from self.keys()

    def keys(self) -> Iterator[str]:
        for key in keys(self.cls):
            if f"{self.name}.{key.name}".strip(".") not in (*_SECTIONS, "workload.replay", "pools", "pools.serve"):
                yield from textwrap.wrap(self._comment(key), _WIDTH, initial_indent="# ", subsequent_indent="# ")
                yield self._line(key)

    def _comment(self, key: Key) -> str:
        row, kinds = self.derived.get(key.name), kinds_of(key.kind)
        return " ".join([key.described, *([f"A table with a kind: {', '.join(kinds)}."] if kinds else []),
                         *([f"Here: {row.source}."] if row and row.value is not None else [])])

    def _line(self, key: Key) -> str:
        if key.name in self.active:
            return f"{key.name} = {toml(self.active[key.name])}"
        row = self.derived.get(key.name)
        value = row.value if row and "Example" not in key.labels else key.default
        return f"#{key.name} = {key.labels.get('Example') or toml(plain(value))}"


def toml(value: Any) -> str:
    """*value* as TOML on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {toml(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)
