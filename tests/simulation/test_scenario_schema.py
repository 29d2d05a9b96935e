"""The schema accepts what ksim accepts, and refuses what an editor should mark."""

import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import attrs
import pytest
from jsonschema import Draft7Validator

from benchmarks.reference import EXAMPLES, ROOT
from ksim.foundation.units import optional_quantity
from ksim.simulation.scenario_schema import _table, schema

SCHEMA = schema()
#: A fragment in a page need not be a whole scenario.
FRAGMENT = {key: value for key, value in SCHEMA.items() if key != "required"}
BLOCKS = [(path.name, text) for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
          for text in re.findall(r"^```toml\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)]


def problems(table, whole=SCHEMA):
    return [f"{error.json_path}: {error.message}" for error in Draft7Validator(whole).iter_errors(table)]


def test_the_schema_is_valid():
    Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", [*EXAMPLES.parent.rglob("*.toml")], ids=lambda path: path.stem)
def test_scenarios_that_ship_are_valid(path):
    assert problems(tomllib.loads(path.read_text(encoding="utf-8"))) == []


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
