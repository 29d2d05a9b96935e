"""Keys in a unit: texts with it, no others, and times not without."""

import pytest
from attrs import field, frozen

from ksim.foundation.config import plain, structure
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import Hertz, Seconds, Watts, measured, optional_quantity, quantity
from ksim.workload.distributions import Exponential, Fixed, Times


@frozen
class Keys:
    wait: Seconds = field(default=0.5, converter=quantity)
    end: Seconds | None = field(default=None, converter=optional_quantity)
    cap: Watts = field(default=1.0, converter=quantity)
    clock: Hertz | None = field(default=None, converter=optional_quantity)
    think: Times = Fixed(0)


@pytest.mark.parametrize(("value", "unit", "number"), [
    ("200 ms", "s", 0.2), ("3us", "s", 3e-6), (0, "s", 0), ("0", "s", 0), (0.0, "s", 0), ("-5 s", "s", -5),
    (400, "W", 400), ("0.4 kW", "W", 400), ("400", "W", 400), ("1.5 GHz", "Hz", 1.5e9), ("2k", "", 2000), (7, "", 7)])
def test_values_in_their_unit(value, unit, number):
    assert measured(value, unit) == number


@pytest.mark.parametrize(("value", "unit", "problem"), [
    (200, "s", "200 has no unit; write '200 ms' or '200 s'"), ("200", "s", "200 has no unit"),
    (0.05, "s", "0.05 has no unit"), ("5 W", "s", "is in W; expected s"), ("5 W/s", "W", "is in W/s; expected W"),
    ("5 s", "", "is in s; expected a number without a unit"), ("1 Ps", "s", "is too long"),
    (float("nan"), "s", "is not finite"), ("soon", "s", "is not a quantity")])
def test_values_that_are_not_in_their_unit(value, unit, problem):
    with pytest.raises(ValueError, match=problem):
        measured(value, unit)


@pytest.mark.parametrize(("table", "message"), [
    ({"wait": 3}, "^wait: 3 has no unit"), ({"end": "2 MB"}, "^end: '2 MB' is in B"), ({"cap": "1 GHz"}, "^cap: .*Hz"),
    ({"wait": True}, "^wait: expected a number or a text such as '200 ms'"), ({"wait": [1]}, "^wait: expected"),
    ({"think": {"kind": "fixed", "value": 3}}, "^think: value: 3 has no unit"),
    ({"think": {"kind": "none", "value": 3}}, "^think: expected a table with kind"),
    ({"think": 3}, "^think: expected")])
def test_errors_name_the_key(table, message):
    with pytest.raises(ConfigError, match=message):
        structure(Keys, table)


def test_a_written_quantity_reads_back_to_the_bit():
    keys = structure(Keys, {"wait": "0.1 ms", "end": "33.3 s", "cap": "1.1 kW", "clock": "1980 MHz",
                            "think": {"kind": "exponential", "mean": "0.7 s"}})
    assert plain(keys)["wait"] == "0.0001 s" and plain(keys)["think"]["mean"] == "0.7 s"
    assert structure(Keys, plain(keys)) == keys
    assert structure(Keys, plain(Keys(think=Exponential(1 / 3)))) == Keys(think=Exponential(1 / 3))


def test_a_scenario_in_python_has_times_in_seconds():
    assert Keys(wait=3, think=Fixed(5)) == Keys(wait="3 s", think=Fixed("5 s"))
