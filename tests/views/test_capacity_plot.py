"""The figure of a capacity question."""

import math
import warnings

import pytest

from ksim.views.figures.studies import capacity_chart
from tests.views.page.made_up import set_ups

TARGET = "ttft:p99:1s"


def answer(*found):
    return {"targets": [TARGET], "rate": 10.0, "set_ups": found}


def test_a_highest_rate_may_have_an_open_interval(tmp_path):
    """Few replications leave it without an upper end; the figure is drawn all the same."""
    first = next(set_ups())
    highest = {**first["highest_rate"], "interval": [0.0, None]}
    with warnings.catch_warnings(action="error"):
        path = capacity_chart("llama", answer({**first, "highest_rate": highest}), 3).save(tmp_path / "curve.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [1, 2])
def test_each_band_has_a_colour_of_its_own_and_each_line_a_name(count):
    found = list(set_ups())
    attainment, goodput = capacity_chart("llama", answer(*found[:count], found[-1]), 3).figure.axes
    for axes in (attainment, goodput):
        bands = [tuple(one.get_facecolor()[0]) for one in axes.collections]
        assert len(bands) == len({*bands}) == count
    named = [text.get_text() for text in attainment.get_legend().get_texts()]
    assert named == [*["3 x TP4", f"7 x {found[1]['name']}"][:count], "10 requests/s, as asked"]


def test_rates_without_an_interval_are_hollow_and_only_a_few_set_ups_are_drawn():
    first = next(set_ups())
    names = [f"TP{place}" for place in range(6)]
    (attainment, _) = capacity_chart("llama", answer(*({**first, "name": name} for name in names)), 3).panels
    lines = [mark for mark in attainment.marks if getattr(mark, "dots", 0)]
    assert [line.waits for line in lines] == [False] * 4 + [True] * 2
    few = [point["replications"] < 3 for point in first["points"]]
    assert list(lines[0].hollow) == few and any(few)
    assert [math.isnan(low) for low in lines[0].low] == few
