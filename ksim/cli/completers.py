"""What completes the values of options: names of the catalogue and of plug-ins, and keys of a scenario with values.

Completers read file names and the schema of scenarios alone: nothing of ksim is imported while someone waits for a tab.
A completer that has nothing to offer leaves it to the shell, which offers files.
"""

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import typer

from ksim.foundation.files import plug_ins

Completer = Callable[[typer.Context, str], list[str]]
Schema = Mapping[str, Any]

_PACKAGE = Path(__file__).parents[1]


@cache
def _names(folder: str) -> tuple[str, ...]:
    """The data files or the plug-ins of *folder*, such as "gpus" or "cluster.routers"."""
    data, plugins = _PACKAGE / "data" / folder, _PACKAGE / folder.replace(".", "/")
    if not data.is_dir():
        return tuple(sorted(plug_ins(plugins)))
    return tuple(sorted(file.stem for file in data.iterdir() if file.suffix in (".toml", ".json")))


def names(*folders: str, beside: Sequence[str] = ()) -> Completer:
    """Offer the names in *folders*, and those *beside* them."""
    def complete(_: typer.Context, incomplete: str) -> list[str]:
        return _beginning(incomplete, [*beside, *(name for folder in folders for name in _names(folder))])

    return complete


def words(*choices: str) -> Completer:
    """Offer *choices*."""
    return lambda _, incomplete: _beginning(incomplete, choices)


def several(completer: Completer) -> Completer:
    """Complete the last of several values with commas between them."""
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{value}" for value in completer(ctx, last)]

    return complete


def setting(context: typer.Context, incomplete: str) -> list[str]:
    """Offer KEY=VALUE of a scenario, such as ``serve.max_num_seqs=1024``, name by name."""
    if "=" in incomplete:
        key, _, value = incomplete.partition("=")
        before, comma, last = value.rpartition(",")
        return [f"{key}={before}{comma}{value_text}" for value_text in _beginning(last, _values(_at(_keys(), key)))]
    return _with_values([*_matching(incomplete)])


def pool(context: typer.Context, incomplete: str) -> list[str]:
    """Offer NAME:KEY=VALUE,... of a pool of the scenario."""
    name, colon, pairs = incomplete.partition(":")
    if not colon:
        return [f"{known}:" for known in _pools() if known.startswith(incomplete)]
    before, comma, last = pairs.rpartition(",")
    known = {**_properties(_definition("EngineSettings")), **_properties(_definition("PoolSettings"))}
    at, equals, value = last.partition("=")
    offers = ([f"{at}={value_text}" for value_text in _beginning(value, _values(known.get(at, {})))] if equals else
              _with_values([(word, value) for word, value in known.items() if word.startswith(last)]))
    return [f"{name}:{before}{comma}{value_text}" for value_text in offers]


def _beginning(incomplete: str, choices: Sequence[str]) -> list[str]:
    return [choice for choice in choices if choice.startswith(incomplete)]


def _with_values(keys: Sequence[tuple[str, Schema]]) -> list[str]:
    """KEY= of each key, and of a single one its values, too: with several offers, shells put no space behind "="."""
    tables = [name for name, value in keys if _properties(value)]
    offers = [name if name in tables else f"{name}=" for name, value in keys]
    if len(keys) == 1 and not tables:
        offers += [f"{keys[0][0]}={value}" for value in _values(keys[0][1])]
    return offers


@cache
def _schema() -> Schema:
    content: Schema = json.loads((_PACKAGE / "data" / "scenario.schema.json").read_text(encoding="utf-8"))
    return content


def _definition(name: str) -> Schema:
    definition: Schema = _schema()["definitions"][name]
    return definition


def _properties(value: Schema) -> dict[str, Schema]:
    """The keys of a table; of a plug-in none, whose bare name may stand for it."""
    if "$ref" in value:
        return _properties(_definition(value["$ref"].removeprefix("#/definitions/")))
    if any("$ref" not in part and "properties" not in part and part.get("type") != "array"
           for part in value.get("anyOf", ())):
        return {}
    inner = dict(value.get("properties", {}))
    for part in (*value.get("allOf", ()), *value.get("anyOf", ())):
        for name, member in _properties(part).items():
            inner[name] = {"anyOf": [inner[name], member]} if "const" in member and name in inner else member
    return inner


def _keys() -> dict[str, Schema]:
    """The keys of a scenario, with the names of its pools in place of NAME."""
    top = dict(_schema()["properties"])
    own = {**_properties(_definition("PoolSettings")), "serve": {"$ref": "#/definitions/EngineSettings"}}
    top["pools"] = {"properties": {name: {"properties": own} for name in _pools()}}
    return top


def _pools() -> list[str]:
    """The pools of the scenario that the line names; none where it cannot be read.

    The parser knows little of a line that is not complete, and the line itself is in the environment.
    """
    pools: list[str] = []
    words = (word.strip("'\"") for word in os.environ.get("COMP_WORDS", "").split("\n"))
    for word in (word for word in words if word.endswith(".toml")):
        with suppress(OSError, ValueError, AttributeError):
            pools += tomllib.loads(Path(word).read_text(encoding="utf-8")).get("pools", {})
    return pools


def _matching(incomplete: str) -> Iterator[tuple[str, Schema]]:
    """The dotted keys that begin with *incomplete*, down to the tables whose names it has in full."""
    *parents, last = incomplete.split(".")
    inner, before = _keys(), ""
    for parent in parents:
        inner, before = _properties(inner.get(parent, {})), f"{before}{parent}."
    for name, value in inner.items():
        if name.startswith(last):
            yield from _opened(f"{before}{name}", value)


def _opened(name: str, value: Schema) -> Iterator[tuple[str, Schema]]:
    """A key; of a table, NAME. with the keys in it."""
    inner = _properties(value)
    if not inner:
        yield name, value
    for key, member in inner.items():
        yield f"{name}.{key}" + "." * bool(_properties(member)), member


def _at(inner: dict[str, Schema], dotted: str) -> Schema:
    value: Schema = {"properties": inner}
    for name in dotted.split("."):
        value = _properties(value).get(name, {})
    return value


def _parts(value: Schema) -> Iterator[Schema]:
    """*value*, and what it may be instead."""
    if "$ref" in value:
        value = _definition(value["$ref"].removeprefix("#/definitions/"))
    yield value
    for part in (*value.get("anyOf", ()), *value.get("allOf", ())):
        yield from _parts(part)


def _values(value: Schema) -> list[str]:
    """What a key may be: names, true and false, its default and examples."""
    if "items" in value:
        return _values(value["items"])
    parts = [*_parts(value)]
    values = [name for part in parts for name in (*part.get("enum", ()), *([part["const"]] if "const" in part else []))]
    values += ["true", "false"] if any(part.get("type") == "boolean" for part in parts) else []
    values += [value_text for value_text in (value.get("default"), *value.get("examples", ()))
               if isinstance(value_text, str | int | float) and not isinstance(value_text, bool)]
    return list(dict.fromkeys(map(str, values)))


def number(_: typer.Context, incomplete: str) -> list[str]:
    """Offer numbers of a run, to minimise or to bound, with "max:" where that is asked for."""
    from ksim.results.numbers import NUMBERS

    begin = "max:" if incomplete.startswith("max:") else ""
    return _beginning(incomplete, [f"{begin}{key}" for key in NUMBERS])


def flag(name: str) -> Completer:
    """Offer the values of an engine setting, where there are some to choose from."""
    return lambda _, incomplete: _beginning(incomplete, _values(_properties(_definition("EngineSettings"))[name]))


def is_flag(name: str) -> bool:
    """Whether an option of this *name* is an engine setting."""
    return name in _definition("EngineSettings")["properties"]
