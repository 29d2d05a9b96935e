"""What classes say of their keys."""

from pathlib import Path

import attrs
import pytest
from attrs import field, frozen
from attrs.validators import and_, ge, gt, in_, le, lt, optional

from ksim.foundation.config import Choice
from ksim.foundation.keys import Key, keys
from ksim.foundation.units import optional_quantity


@frozen
class Base:
    length: int = field(default=5, validator=(gt(0), le(9)))
    """How long it is. Unit: tokens."""


@frozen
class Table(Base):
    path: Path = field(converter=Path, kw_only=True)
    undocumented: bool = False
    within: float | None = field(default=None, converter=optional_quantity, validator=optional(and_(ge(0), lt(1e9))))
    """How soon: a time. Unit: s. Default: that of `length`. Source: vLLM.
    Example: "2 s"."""
    colour: str = field(default="red", validator=in_(("red", "blue")))
    """Whose name: any: "of" these."""
    router: Choice = Choice("round_robin")
    """Which. Names: cluster.routers."""
    sizes: tuple[int, ...] = field(factory=lambda: (1, 2))
    """Sizes. Unit: none."""


def key(name: str) -> Key:
    return next(key for key in keys(Table) if key.name == name)


def test_keys_are_those_of_the_table_in_order():
    assert [key.name for key in keys(Table)] == [each.name for each in attrs.fields(Table)]


@pytest.mark.parametrize(("name", "text", "labels"), [
    ("length", "How long it is.", {"Unit": "tokens"}),
    ("undocumented", "", {}),
    ("within", "How soon: a time.", {"Unit": "s", "Default": "that of `length`", "Source": "vLLM",
                                     "Example": '"2 s"'}),
    ("colour", 'Whose name: any: "of" these.', {}),
])
def test_the_string_under_a_field_says_what_it_is(name, text, labels):
    assert (key(name).text, key(name).labels) == (text, labels)


def test_help_of_a_key_has_its_unit_default_and_example():
    assert key("within").described == "How soon: a time. Unit: s. Default: that of `length`."
    assert key("colour").described.endswith("One of: red, blue.")


def test_keys_have_their_defaults_or_are_required():
    assert [key(name).default for name in ("length", "within", "sizes", "path")] == [5, None, (1, 2), None]
    assert [each.name for each in keys(Table) if each.required] == ["path"]


def test_keys_know_their_types_bounds_and_choices():
    assert key("within").kind is float and key("within").quantity and not key("length").quantity
    assert key("length").bounds == [(">", 0), ("<=", 9)] and key("within").bounds == [(">=", 0), ("<", 1e9)]
    assert key("colour").choices == ("red", "blue") and key("length").choices == ()
    assert "round_robin" in key("router").names and key("colour").names == []
