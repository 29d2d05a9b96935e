"""A scenario as a table: values that are TOML's, keys with dots, and paths that are absolute."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.foundation.files import is_there

#: Keys whose values are paths relative to the scenario's folder; a catalogue key holds a path if it ends like a file.
_CATALOGUE = ("model", "gpu", "system", "host", "engine")
_PATHS = (*((key,) for key in _CATALOGUE), ("gpu", "name"), ("energy", "grid"), ("oracle", "path"), ("routing", "path"),
          ("router", "config"), ("pair_router", "config"),
          ("workload", "replay", "path"), ("workload", "synthetic", "prompt", "path"),
          ("workload", "synthetic", "output", "path"))


def native(value: Any, where: str) -> Any:
    """*value* in the types of TOML: NumPy's numbers, tuples and paths are converted.

    Raises ConfigError for a key that is not text.
    """
    if isinstance(value, Mapping):
        if strangers := [key for key in value if not isinstance(key, str)]:
            raise ConfigError(where, f"keys are texts, not {strangers[0]!r}")
        return {key: native(inner, f"{where}: {key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [native(inner, where) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if type(value).__module__ == "numpy" else value


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted *key* of *table*, in tables that are made where they are missing.

    Raises ConfigError where a value is in the way.
    """
    *parents, last = key.split(".")
    for parent in parents:
        inner = table.setdefault(parent, {})
        if isinstance(inner, str):  # a plug-in by its bare name, which now gets options
            inner = table[parent] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(key, f"{parent} is a value, not a table")
        table = inner
    table[last] = value


def _gpu_named(table: Mapping[str, Any]) -> dict[str, Any]:
    """*table*, in which a table of a GPU's figures without a name is of the GPU of the system beside it."""
    gpu, system = table.get("gpu"), table.get("system")
    if isinstance(gpu, Mapping) and "name" not in gpu and isinstance(system, str):
        return {**table, "gpu": {"name": catalog.load("systems", system).get("gpu"), **gpu}}
    return dict(table)


def rooted(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """*table* with its relative paths made absolute, and GPUs named of which it has figures alone."""
    absolute = _gpu_named(table)
    pools = absolute.get("pools")
    in_pools = [("pools", name, *key) for name in (pools if isinstance(pools, Mapping) else ())
                for key in (*((key,) for key in _CATALOGUE), ("gpu", "name"))]
    if isinstance(pools, Mapping):
        absolute["pools"] = {name: _gpu_named(pool) if isinstance(pool, Mapping) else pool
                             for name, pool in pools.items()}
    for keys in (*_PATHS, *in_pools):
        holder: Any = absolute
        for key in keys[:-1]:
            if not isinstance(holder.get(key), Mapping):
                break
            holder[key] = dict(holder[key])
            holder = holder[key]
        else:
            value = holder.get(keys[-1])
            if isinstance(value, str) and (keys[-1] == "path" or catalog.is_file(value) or
                                           (keys[-1] == "config" and value.endswith((".yaml", ".yml"))) or
                                           (keys == ("model",) and _is_folder(value, folder))):
                holder[keys[-1]] = os.path.abspath(folder / value)  # noqa: PTH100  resolve() fails on loops of links
    return absolute


def _is_folder(model: str, folder: Path) -> bool:
    """Whether *model* is a folder beside the scenario, and not a name of the catalogue."""
    path = folder / model
    return bool(model) and is_there(path) and path.is_dir() and model not in catalog.entries("models")


def merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """*table* with *changes*; tables inside are merged too, except plug-ins, whose options belong together."""
    both = {key: merged(table[key], changes[key]) for key in changes if _are_tables(table.get(key), changes[key])}
    return {**table, **changes, **both}


def alike(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all *tables* have alike; of tables inside, too."""
    values: dict[str, list[Any]] = {key: [table.get(key) for table in tables] for key in tables[0]}
    return {key: same[0] if all(value == same[0] for value in same) else alike(same) for key, same in values.items()
            if all(value == same[0] for value in same) or _are_tables(*same)}


def beside(whole: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """What *table* changes in *whole*: `merged` makes *table* of both."""
    return {key: beside(whole[key], value) if _are_tables(whole.get(key), value) else value
            for key, value in table.items() if whole.get(key) != value}


def _are_tables(*values: Any) -> bool:
    """Whether *values* are tables, and none names a plug-in."""
    return all(isinstance(value, Mapping) and "name" not in value for value in values)


def pieces(where: str, key: str, text: str) -> list[str]:
    """*text*, split at its commas, except those in quotes and brackets; raises ConfigError for one that is left open.

    The error names *where* the text of *key* was given.
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not quote and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    if quote or depth:
        raise ConfigError(where, f"{key}: a quote or bracket is left open in {text!r}")
    return parts
