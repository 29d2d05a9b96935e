"""Scenarios with any keys of the JSON Schema, whose values are within their bounds, at them, beyond them or of other
types."""

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

from ksim.scenario.schema import FILE, Schema

Table = dict[str, Any]
#: What may stand in the place of any value.
WRONG = ("", "x", -1, 0, 1.5, True, [], {}, [1], {"a": 1}, "1 s", "-5 GB", "3 bananas", float("nan"), float("inf"),
         2**70, "1e400", "0", "\u2603", [[]], {"name": "x"}, {"kind": "x"})
#: A run is as large as a number is: larger ones stay out, unless they are beyond a bound.
MOST = 64
SMALL = (0, 1, 2, 3, 7, 50)
UNITS = ("ms", "s", "us", "W", "kW", "GB", "MiB", "GHz", "GB/s", "TFLOPS")
TEXTS = ("llama-3.2-1b", "x:y", "mine.toml")
#: Keys a scenario has at most so many levels below the top.
DEPTH = 6


@cache
def _definitions() -> tuple[Schema, Schema]:
    whole: Schema = json.loads(FILE.read_text(encoding="utf-8"))
    return whole, whole["definitions"]


def options(schema: Schema) -> list[Schema]:
    """The forms that a value of *schema* may have."""
    if "$ref" in schema:
        return options(_definitions()[1][schema["$ref"].rpartition("/")[2]])
    if "allOf" in schema:
        return options(schema["allOf"][0])
    return [form for one in schema["anyOf"] for form in options(one)] if "anyOf" in schema else [schema]


def paths(schema: Schema, depth: int = DEPTH) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """All keys of a table, and of tables inside, each with the schema of its value."""
    for form in options(schema):
        # Options of a plug-in are drawn with its name.
        if depth and "const" not in form.get("properties", {}).get("name", {}):
            inner = {**form.get("properties", {}), **(
                {"any": form["additionalProperties"]} if form.get("additionalProperties") else {})}
            for key, value in inner.items():
                yield (key,), value
                yield from (((key, *rest), below) for rest, below in paths(value, depth - 1))


@cache
def keys() -> list[tuple[tuple[str, ...], Schema]]:
    return sorted(dict(paths(_definitions()[0])).items(), key=lambda item: item[0])


def number(schema: Schema, chance: Random) -> float:
    """A number at or beyond a bound of *schema*, or a small one."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    near = [bound + step for bound, steps in ((low, (-1, 0, 1)), (high, (0, 1))) if bound is not None for step in steps
            if bound + step <= MOST or (bound is high and step == 1)]
    found = chance.choice([*near, *SMALL])
    return found + chance.choice([0, 0.5]) if schema["type"] == "number" and found <= MOST else found


def value(schema: Schema, chance: Random) -> Any:
    """A value of *schema*, or, one time in eight, any other."""
    if chance.random() < 1 / 8:
        return copy.deepcopy(chance.choice(WRONG))
    return _made(chance.choice(options(schema)), chance)


def _made(form: Schema, chance: Random) -> Any:
    if {"const", "enum"} & {*form}:
        return form["const"] if "const" in form else chance.choice(form["enum"])
    kinds: dict[str, Callable[[], Any]] = {
        "integer": lambda: number(form, chance), "number": lambda: number(form, chance),
        "boolean": lambda: chance.random() < 0.5, "object": lambda: table(form, chance),
        "string": lambda: chance.choice([*TEXTS, f"{chance.choice(SMALL)} {chance.choice(UNITS)}"]),
        "array": lambda: [value(form["items"], chance) for _ in range(chance.choice([0, 1, 2]))]}
    return kinds.get(form.get("type", ""), lambda: copy.deepcopy(chance.choice(WRONG)))()


def table(form: Schema, chance: Random) -> Table:
    inner = form.get("properties", {})
    needed = {*form.get("required", ())}
    made = {key: value(one, chance) for key, one in inner.items()
            if (key in needed and chance.random() < 0.95) or (key not in needed and chance.random() < 1 / 4)}
    if form.get("additionalProperties"):
        names = chance.sample(["a", "b"], chance.choice([0, 1, 2]))
        made |= {key: value(form["additionalProperties"], chance) for key in names}
    return made


def changed(scenario: Table, chance: Random) -> Table:
    """*scenario* with another value of one key, or without it."""
    made = here = copy.deepcopy(scenario)
    path, schema = chance.choice(keys())
    for key in path[:-1]:
        inner = here.get(key)
        here[key] = here = inner if isinstance(inner, dict) else {}
    if path[-1] in here and chance.random() < 1 / 8:
        del here[path[-1]]
    else:
        here[path[-1]] = value(schema, chance)
    return made
