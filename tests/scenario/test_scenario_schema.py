"""The schema accepts what ksim accepts, and refuses what an editor should mark."""

import copy
import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import attrs
import pytest
from jsonschema import Draft7Validator

from benchmarks.reference import EXAMPLES, ROOT, SECTIONS
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import KsimError
from ksim.foundation.keys import keys
from ksim.foundation.units import optional_quantity
from ksim.scenario.scenario import Scenario
from ksim.scenario.schema import ID, _table, schema

SCHEMA = schema()
#: A fragment in a page need not be a whole scenario.
FRAGMENT = {key: value for key, value in SCHEMA.items() if key != "required"}
BLOCKS = [(path.name, text) for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
          for text in re.findall(r"^```toml\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)]


def tables():
    """The classes of all tables."""
    return [*SECTIONS.values()]


def problems(table, whole=SCHEMA):
    return [f"{error.json_path}: {error.message}" for error in Draft7Validator(whole).iter_errors(table)]


def test_the_schema_is_valid_and_says_what_it_is():
    Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == ID and SCHEMA["title"] and SCHEMA["description"]


def test_every_key_has_a_description_with_its_unit_and_valid_examples():
    for cls in tables():
        inner = SCHEMA if cls is Scenario else SCHEMA["definitions"][cls.__name__]
        for key in (key for key in keys(cls) if key.name != "kind"):
            value = inner["properties"][key.name]
            unit = key.labels.get("Unit", "none")
            assert value["description"].startswith(key.text)
            assert unit == "none" or f"Unit: {unit}" in value["description"]
            for example in value.get("examples", ()):
                assert problems(example, {**value, "definitions": SCHEMA["definitions"]}) == [], key.name


@pytest.mark.parametrize("path", [*EXAMPLES.parent.rglob("*.toml")], ids=lambda path: path.stem)
def test_scenarios_that_ship_are_valid(path):
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert problems(table) == []
    changed = Scenario.read(path).with_values({"serve.max_num_seqs": 8, "seed": 3})
    assert problems(tomllib.loads(changed.to_toml())) == []


#: A scenario with all kinds of tables.
FULL = {
    "model": "llama-3.2-1b", "gpu": "h200", "router": {"name": "prefix_aware"}, "oracle": {"name": "roofline"},
    "serve": {"kv_transfer_config": {"kv_connector": "NixlConnector"}, "scheduling_policy": {"name": "fcfs"},
              "speculative_config": {"method": "ngram", "num_speculative_tokens": 2,
                                     "acceptance": {"name": "geometric", "rate": 0.5}}, "eviction": {"name": "vllm"},
              "limit_mm_per_prompt": {}, "lora_modules": [{"name": "a", "rank": 8}], "enable_lora": True},
    "pools": {"a": {"role": "prefill", "serve": {"max_num_seqs": 4}}, "b": {"role": "decode"}}, "signals": {},
    "slo": {"ttft": "1 s"}, "power": {"governor": {"name": "slack"}}, "energy": {},
    "workload": {"retries": {}, "synthetic": {
        "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 9},
        "prefixes": {"groups": 1, "tokens": 9},
        "output": {"kind": "fixed", "value": 9}, "adapters": {"count": 1},
        "sessions": {"turns": {"kind": "fixed", "value": 2}, "think": {"kind": "fixed", "value": "1 s"}}}},
}


def places(table, path=()):
    """Where the tables in *table* are."""
    yield path
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        if isinstance(value, dict | list) and value != []:
            yield from places(value, (*path, key))


def is_closed(path):
    """Whether there are keys of ksim alone at *path*: no names of pools, no list, no options of a plug-in."""
    inner = FULL
    for key in path:
        inner = inner[key]
    return path != ("pools",) and isinstance(inner, dict) and "name" not in inner


@pytest.mark.parametrize("path", [*filter(is_closed, places(FULL))], ids=lambda path: ".".join(map(str, path)) or "top")
def test_a_key_that_there_is_not_is_refused_by_ksim_and_by_the_schema(path):
    assert problems(FULL) == []
    table = inner = copy.deepcopy(FULL)
    for key in path:
        inner = inner[key]
    inner["no_such_key"] = 1
    assert problems(table) != []
    with pytest.raises(KsimError, match="no_such_key"):
        Scenario.of(table)


@pytest.mark.parametrize("folder", dict.fromkeys(key.folders[0] for cls in tables() for key in keys(cls)
                                                 if key.kind is Choice and key.folders))
def test_plug_ins_are_those_of_their_folder_with_their_options(folder):
    whole = {**SCHEMA["definitions"][folder], "definitions": SCHEMA["definitions"]}
    for name in catalog.names(folder):
        assert problems(name, whole) == problems({"name": name}, whole) == []
        assert problems({"name": name, "no_such_option": 1}, whole) != []
        with pytest.raises(KsimError):
            plugin(folder, Choice(name, {"no_such_option": 1}))
    assert problems(f"{catalog.names(folder)[0]}x", whole) != []
    assert problems("mine:Rule", whole) == problems({"name": "mine:Rule", "any": 1}, whole) == []


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=[f"{page} {text.splitlines()[0]}" for page, text in BLOCKS])
def test_scenarios_in_the_pages_are_valid(page, text):
    table = tomllib.loads(text)
    if "source" not in table:  # which data files have
        assert problems(table, FRAGMENT) == []


SMALL = {"model": "a", "gpu": "b", "workload": {"replay": {"path": "trace.csv"}}}


@pytest.mark.parametrize("more", [
    {}, {"slo": {"ttft": "200 ms"}}, {"power": {"cap": 500, "governor": {"name": "slack", "share": 0.1}}},
    {"oracle": "mine:Oracle"}, {"energy": {"pue": 1.2}}, {"collectives": ["ring", "mine:Ring"]},
])
def test_the_schema_accepts_valid_scenarios(more):
    assert problems({**SMALL, **more}) == []


@pytest.mark.parametrize(("more", "where"), [
    ({"serve": {"max_num_sequences": 4}}, "$.serve"),
    ({"serve": {"max_num_seqs": 0}}, "$.serve.max_num_seqs"),
    ({"serve": {"max_num_seqs": "many"}}, "$.serve.max_num_seqs"),
    ({"serve": {"prefix_cache": "trt"}}, "$.serve.prefix_cache"),
    ({"serve": {"cudagraph_capture_sizes": ["1"]}}, "$.serve.cudagraph_capture_sizes[0]"),
    ({"slo": {"ttft": "soon"}}, "$.slo.ttft"),
    ({"router": {"options": 1}}, "$.router"),
    ({"workload": {"replay": {}}}, "$.workload.replay"),
    ({"workload": {"synthetic": {"arrivals": {}, "output": {}, "prompt": {"kind": "normal"}}}},
     "$.workload.synthetic.prompt"),
    ({"colour": "red"}, "$"),
])
def test_the_schema_rejects_mistakes(more, where):
    assert any(problem.startswith(f"{where}: ") for problem in problems({**SMALL, **more}))


@attrs.frozen
class Columns:
    """Keys of types that scenarios might have one day."""

    names: Mapping[str, str] = attrs.field(factory=dict)
    either: int | str = 0
    unit: Literal["s", "ms", "us"] = "s"
    anything: Any = None
    soon: Annotated[float, "s"] | None = attrs.field(default=None, converter=optional_quantity)
    several: list[float] = attrs.field(factory=list)
    not_this: str = attrs.field(default="a", validator=attrs.validators.not_(attrs.validators.in_(("b",))))
    last: int = attrs.field(default=attrs.Factory(lambda self: self.either, takes_self=True))


@pytest.mark.parametrize(("table", "valid"), [
    ({"names": {"arrival": "ts"}, "either": "x", "unit": "us", "anything": [1], "several": [1, 2.5]}, True),
    ({"not_this": "c", "last": 3}, True), ({"names": {"arrival": 1}}, False), ({"either": 1.5}, False),
    ({"soon": 0}, True), ({"soon": "2.5e1 ms"}, True), ({"soon": 200}, False), ({"soon": "200"}, False),
    ({"unit": "h"}, False), ({"several": "1"}, False),
])
def test_the_schema_knows_the_types_of_keys(table, valid):
    assert (problems(table, _table(Columns, {})) == []) == valid
