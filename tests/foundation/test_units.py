"""Quantities and number formats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.units import DType, in_one_unit, quantity


@pytest.mark.parametrize(("text", "value"), [
    ("4.8 TB/s", 4.8e12), ("141 GB", 141e9), ("80 GiB", 80 * 2**30), ("1.5 us", 1.5e-6), ("200 ms", 0.2),
    ("1980 MHz", 1.98e9), ("0.6 pJ/FLOP", 0.6e-12), ("-3", -3.0), ("2e3", 2000.0), (7, 7.0), ("700 W", 700.0),
])
def test_quantities_are_in_si_units(text, value):
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["fast", "4.8 TB/h", "4,8 TB/s", "", "nan", float("nan"), float("inf"), "1.2 3"])
def test_text_that_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError):
        quantity(text)


@given(st.floats(1e-3, 1e3), st.sampled_from(["s", "ms", "us", "ns"]))
def test_units_only_scale(value, unit):
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    assert quantity(f"{value!r} {unit}") == pytest.approx(value * scale, rel=1e-15)


def test_number_formats_of_equal_size_are_different():
    assert DType.named("fp8") is not DType.named("int8")
    assert (DType.FP8.bytes, DType.BF16.bytes, DType.FP4.bytes) == (1.0, 2.0, 0.5)
    with pytest.raises(ValueError, match="'bf17' is not a number format"):
        DType.named("bf17")


@pytest.mark.parametrize("values, numbers, unit", [
    (["400 W", "0.7 kW", 0], [400, 700, 0], "W"), (["1980 MHz", "1410MHz", None], [1980, 1410, None], "MHz"),
    ([0, "50ms", "1s"], [0, 0.05, 1], "s"), (["50ms", "200 ms"], [50, 200], "ms"), ([1, 2.5], [1, 2.5], ""),
    (["64k", "1M"], [64e3, 1e6], ""), (["700 W", 500], [700, 500], "W"), ([0, "0 W"], [0, 0], "")])
def test_quantities_of_one_kind_share_a_unit(values, numbers, unit):
    found = in_one_unit(values)
    assert found == (pytest.approx(numbers) if None not in numbers else numbers, unit)


@pytest.mark.parametrize("values", [["fcfs", 1], ["400 W", "1 s"], [True, False], [{"name": "x"}], [None], []])
def test_what_is_no_quantity_has_no_unit(values):
    assert in_one_unit(values) is None
