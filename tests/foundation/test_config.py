"""Tables become values, or an error that names the key."""

from collections.abc import Sequence

import pytest
from attrs import field, frozen, validators

from ksim.foundation.config import Choice, plain, structure
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType, camel, quantity


@frozen
class Part:
    count: int = field(default=1, validator=validators.gt(0))
    speed: float = field(default=1.0, converter=quantity)


@frozen
class Whole:
    name: str
    part: Part = Part()
    parts: tuple[Part, ...] = ()
    plugin: Choice = Choice("waves")
    dtype: DType = DType.BF16
    limit: int | None = None
    flag: bool = True


def test_nested_tables_quantities_and_plugins():
    whole = structure(Whole, {"name": "x", "part": {"speed": "4.8 TB/s"}, "parts": [{"count": 2}],
                              "plugin": {"name": "mine:Oracle", "factor": 2}, "dtype": "fp8", "limit": 4})
    assert whole == Whole("x", Part(1, 4.8e12), (Part(2),), Choice("mine:Oracle", {"factor": 2}), DType.FP8, 4)


def test_a_structured_table_reads_back_as_the_plain_one():
    table = {"name": "x", "part": {"count": 3, "speed": 2.0}, "parts": [{"count": 1, "speed": 1.0}],
             "plugin": {"name": "a", "b": 1}, "dtype": "fp8", "flag": False}
    assert plain(structure(Whole, table)) == table


@pytest.mark.parametrize(("table", "message"), [
    ({}, "f.toml: name: is missing"),
    ({"nam": "x"}, "f.toml: nam: unknown key; did you mean 'name'? expected name, part, parts"),
    ({"name": "x", "part": {"cuont": 1}}, "f.toml: part.cuont: unknown key; did you mean 'count'?"),
    ({"name": "x", "part": {"count": 0}}, "f.toml: part: 'count' must be > 0: 0"),
    ({"name": "x", "part": {"speed": "4.8"}, "parts": [{"count": 1}, {"count": "a"}]},
     "f.toml: parts[1].count: expected a whole number, not 'a'"),
    ({"name": "x", "part": 3}, "f.toml: part: expected a table with count, speed"),
    ({"name": 3}, "f.toml: name: expected a text, not 3"),
    ({"name": "x", "limit": 1.5}, "f.toml: limit: expected a whole number, not 1.5"),
    ({"name": "x", "limit": True}, "f.toml: limit: expected a whole number, not True"),
    ({"name": "x", "flag": "false"}, "f.toml: flag: expected true or false, not 'false'"),
    ({"name": "x", "dtype": "bf17"}, "f.toml: dtype: 'bf17' is not a number format"),
    ({"name": "x", "plugin": 3}, "f.toml: plugin: expected a name, or a table with a name"),
])
def test_a_wrong_value_is_named_with_its_key(table, message):
    with pytest.raises(ConfigError) as caught:
        structure(Whole, table, "f.toml")
    assert str(caught.value).startswith(message)


@frozen
class Three:
    one: int
    two: int
    three: int


@pytest.mark.parametrize(("table", "message"), [
    ({}, "f.toml: one, two, three: are missing"), ({"two": 2}, "f.toml: one, three: are missing"),
    ({"one": 1, "two": 2}, "f.toml: three: is missing"),
    ({"one": "x"}, "f.toml: one: expected a whole number, not 'x'"),
])
def test_all_missing_keys_are_named_at_once(table, message):
    with pytest.raises(ConfigError) as caught:
        structure(Three, table, "f.toml")
    assert str(caught.value) == message


@frozen(field_transformer=camel)
class Policy:
    period_seconds: int = field(validator=validators.gt(0))
    from_: str = ""


@frozen(field_transformer=camel)
class Rules:
    scale_up: Policy | None = None
    scale_downs: Sequence[Policy] = ()


def test_keys_in_camel_case():
    table = {"scaleUp": {"periodSeconds": 15, "from": "a"}, "scaleDowns": [{"periodSeconds": 3, "from": ""}]}
    rules = structure(Rules, table)
    assert rules == Rules(Policy(15, "a"), (Policy(3),)) and plain(rules) == table


@pytest.mark.parametrize(("table", "said"), [
    ({"scale_up": {}}, r"scale_up: unknown key; did you mean 'scaleUp'\? expected scaleUp, scaleDowns"),
    ({"scaleUp": {}}, "scaleUp.periodSeconds: is missing"),
    ({"scaleUp": {"periodSeconds": "x"}}, "scaleUp.periodSeconds: expected a whole number"),
    ({"scaleDowns": [{"periodSeconds": 0}]}, r"scaleDowns\[0\]: 'periodSeconds' must be > 0"),
])
def test_errors_name_keys_in_camel_case(table, said):
    with pytest.raises(ConfigError, match=said):
        structure(Rules, table)
