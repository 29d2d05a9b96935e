"""A chart is drawn by matplotlib and by Plotly from the same values."""

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.views.charts import Axis, Bars, Chart, Dots, Panel, Polyline, RuleLine, Span, Text, decades
from ksim.views.drawing import drawn as on_paper
from ksim.views.page.drawing import drawn
from tests.properties import examples

LINE = Polyline([1, 10, 100], [1.0, 2.0, 4.0], "line", dots=4.0, hollow=(False, True, False), low=[1, np.nan, 3],
                high=[2, np.nan, 5])
DOTS = Dots([2.0, 20.0], [1.5, 3.0], "dots", texts=("a <b>", ""), low=[1.0, np.nan], high=[2.0, np.nan])
BARS = Bars([2, 3], [4.0, 5.0], "bars", begins=[1.0, 2.0])
MARKS = [LINE, DOTS, Polyline([1, 100], [9.0, 9.0], "later", waits=True), BARS, RuleLine(50.0),
         RuleLine(2.5, across=True), Span(5.0, 7.0), Text("said", 10.0, 2.0), Text("corner", 0.5, 0.9, of="panel")]
CHART = Chart("A chart", [Panel("above", Axis.log("x", 0.5, 200.0), Axis("y", 0, 10), MARKS, legend="upper left"),
                          Panel("below", Axis("x"), Axis.names(["one", "two"]), [BARS], tall=2.0)])


def test_both_draw_all_marks_at_their_values():
    axes, _ = on_paper(CHART).axes
    figure = drawn(CHART, 400)
    go.Figure({"data": figure["data"], "layout": figure["layout"]})
    traces = {trace["name"]: trace for trace in figure["data"]
              if trace.get("fill") != "toself" and trace["yaxis"] == "y"}
    assert traces["line"]["x"] == axes.lines[0].get_xdata().tolist() == LINE.x
    assert traces["line"]["y"] == axes.lines[0].get_ydata().tolist() == LINE.y
    assert traces["line"]["marker"]["symbol"] == ["circle", "circle-open", "circle"]
    assert traces["dots"]["x"] == DOTS.x and traces["dots"]["text"] == ["a &lt;b&gt;", ""]
    assert traces["bars"]["x"] == [4.0, 5.0] and traces["bars"]["base"] == [1.0, 2.0]
    assert {text.get_text() for text in axes.texts} >= {"a <b>", "said", "corner"}
    named = {text.get_text() for text in axes.get_legend().get_texts()}
    assert named == {"line", "dots", "bars"} and all(trace["showlegend"] for trace in traces.values())
    assert traces["later"]["visible"] == "legendonly" and len(figure["layout"]["shapes"]) == 3


def test_panels_share_the_height_by_how_tall_they_are():
    layout = drawn(CHART, 400)["layout"]
    (top, bottom) = (layout[name]["domain"] for name in ("yaxis", "yaxis2"))
    assert bottom[0] == pytest.approx(0) and bottom[1] < top[0] and top[1] <= 1
    assert bottom[1] - bottom[0] == pytest.approx(2 * (top[1] - top[0]))


@given(st.floats(-9, 9), st.floats(0.01, 12), st.integers(3, 9))
@examples(60)
def test_ticks_of_a_logarithmic_axis_are_few_and_inside(start, span, most):
    low, high = 10.0 ** start, 10.0 ** (start + span)
    ticks = decades(low, high, most)
    assert all(low <= tick <= high for tick in ticks) and ticks == sorted({*ticks}) and len(ticks) <= most + 2
    assert span < 2 or ticks
