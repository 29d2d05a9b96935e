"""The figures of a run: what is drawn and what is said, not how it looks."""

import re
from itertools import combinations

import numpy as np
import pytest
from attrs import evolve
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

from ksim.flow.events import LinkBuilt, LinkUsed
from ksim.flow.log import Log
from ksim.results.kernels import families
from ksim.results.numbers import LatencyTargets
from ksim.results.series import busiest
from ksim.views.charts import RED, reach
from ksim.views.drawing import write_png
from ksim.views.figures.kernels import (
    Composition,
    composition,
    composition_chart,
    energy_chart,
    run_roofline,
    shown_span,
)
from ksim.views.figures.run import Moments, latency_chart, links_chart, links_of, over_time
from ksim.views.result import Result
from tests.results import by_hand, fabricate, fleet

LIMITS = LatencyTargets(ttft=0.05, e2el=2.0)
LABELS = {"model_id": "llama", "gpu": "h200"}


def result(log, limits=LIMITS):
    return Result(log, LABELS, limits)


CHARTS = {
    "latency": lambda found: latency_chart(found.history, found.limits, found.summary, found.subject),
    "timeline": lambda found: over_time(Moments.of(found.history), found.subject),
    "composition": lambda found: composition_chart(found.history, found.usage, found.subject),
    "roofline": lambda found: run_roofline(found.history, found.usage, found.subject),
    "energy": lambda found: energy_chart(found.history, families(found.kernels), found.subject),
}


def drawn(name, found):
    if name != "links":
        return CHARTS[name](found).figure.axes
    end, note, links = links_of(found.history)
    return links_chart(found.subject, links, len(found.history.links), end, note).figure.axes


def said(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def numbers(axis):
    """The texts of an axis that are seen."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks()
            if low <= tick.get_loc() <= high and tick.label1.get_visible()]


@pytest.mark.parametrize("log", [fabricate.log(count=40, ranks=2, engines=2), fleet.log(count=40, rate=30),
                                 fabricate.log(count=150, rate=60, seats=2), fabricate.log(count=1)])
def test_headlines_name_the_run_and_no_labels_collide(log):
    found = result(log)
    for name in (*CHARTS, *(["links"] if found.history.links else [])):
        for axes in drawn(name, found):
            assert axes.figure.get_suptitle().startswith("llama on")
            axes.figure.draw_without_rendering()
            texts = [*axes.texts, axes.title, axes._right_title, *numbers(axes.xaxis), *numbers(axes.yaxis)]
            boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
            assert not [(name, one, other) for (one, box), (other, beside) in combinations(boxes, 2)
                        if box.overlaps(beside)]
            assert all(box.x0 >= 0 and box.x1 <= axes.figure.bbox.x1 for _, box in boxes)


def test_targets_are_lines_and_say_how_many_meet_them():
    found = result(fabricate.log(count=30))
    first, per_token, _, last = drawn("latency", found)
    met = float((found.history.requests.ttft[found.history.requests.completed] <= 0.05).mean())
    assert any(text == f"target 50.0 ms: met by {100 * met:.1f} %" for text in said(first))
    assert [line.get_xdata() for line in first.lines if line.get_color() == RED] == [[50.0, 50.0]]
    assert any(text.startswith("target 2,000 ms") for text in said(last))
    assert not any(text.startswith("target") for text in said(per_token))


@pytest.mark.parametrize(("values", "end"), [
    ([], 0.0), ([4.0], 4.0), ([1.0, 2.0, 2.9], 2.9), ([1.0] * 99 + [1000.0], 2.0), ([1.0, 1.0, 1000.0], 2.0),
    ([0.0] * 99 + [7.0], 7.0)])
def test_a_few_outliers_do_not_stretch_an_axis(values, end):
    assert reach(np.array(values)) == end


def test_latencies_beyond_the_axis_are_counted():
    found = result(fabricate.log(count=60))
    requests = found.history.requests
    requests.__dict__["ttft"] = np.where(np.arange(len(requests)) == 7, 900.0, requests.ttft)
    first = drawn("latency", found)[0]
    assert "1 beyond the axis, up to 900,000 ms" in said(first)
    assert first.get_xlim()[1] < 90_000


def test_a_request_long_after_all_others_does_not_stretch_the_run():
    early = fabricate.log(count=40)
    found = result(early)
    end, note = shown_span(found.history)
    assert (end, note) == (found.history.duration, "")
    found.history.__dict__["duration"] = 1e6
    found.history.requests.arrival[-1] = 1e6 - 1
    end, note = shown_span(found.history)
    assert end < 1e5 and note == "; beyond the axis: 1 of 40 requests, the last at 1,000,000 s"


def test_the_offered_rate_stands_beside_the_served_one():
    chart = CHARTS["timeline"](result(fabricate.log(count=30)))
    assert [text.get_text() for text in chart.figure.axes[1].get_legend().get_texts()] == ["offered", "served"]
    for stairs in chart.panels[1].marks:
        assert (stairs.y[:-1] * np.diff(stairs.x)).sum() == pytest.approx(30)


def test_steps_above_the_limit_are_explained_in_place():
    log = by_hand.small()
    found = result(Log([evolve(by_hand.ENGINE, limit_watts=150.0)], log.events))
    (note,) = said(drawn("energy", found)[0])
    assert note.startswith("100.0 % of the steps draw more than the limit, up to 160 W") and "on average" in note
    assert any("more than the power limit" in insight.text for insight in found.insights)
    unlimited = result(log)
    assert not said(drawn("energy", unlimited)[0])
    assert not any("power limit" in insight.text for insight in unlimited.insights)


def test_each_pool_has_its_own_figure_of_steps_and_links_have_one(tmp_path):
    names = [path.name for path in result(fleet.log(count=20)).plots(tmp_path)]
    assert names == ["latency.png", "timeline.png", "composition-prefill.png", "composition-decode.png",
                     "roofline.png", "energy.png", "links.png"]


def test_links_are_shown_by_their_mean_use():
    (axes,) = drawn("links", result(fleet.by_hand()))
    # From 5.25 to 7.25 of 12 seconds, half of the capacity is in use.
    assert axes.get_title("left") == "NIC"
    assert axes._right_title.get_text() == "of 1.00 GB/s: mean 8.3 %, at most 50.0 %"
    (line,) = axes.lines
    assert np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(1.0, rel=0.02)


def test_at_most_eight_links_are_shown():
    log = fleet.by_hand()
    log.links += [LinkBuilt(number, f"NIC {number}", "nic", 1e9) for number in range(1, 20)]
    for number in range(1, 20):
        log.add(LinkUsed(1.0, number, 1e7 * number))
        log.add(LinkUsed(2.0, number, 0.0))
    found = busiest(result(log).history, 8)
    assert [link.name for link in found[1:]] == [f"NIC {number}" for number in range(19, 12, -1)]


def test_pools_have_curves_of_their_own_over_time():
    panels = {axes.get_title("left"): axes for axes in drawn("timeline", result(fleet.log(count=30)))}
    for title in ("KV cache in use", "Watts per GPU"):
        assert [text.get_text() for text in panels[title].get_legend().get_texts()] == ["prefill", "decode"]
    assert "between engines" in [text.get_text() for text in panels["Requests"].get_legend().get_texts()]


def test_a_figure_is_written_as_it_is_drawn(tmp_path):
    figure = Figure(figsize=(2, 1))
    figure.text(0.5, 0.5, "some text")
    for name in ("a.png", "b.png"):
        write_png(figure, tmp_path / name, 150)
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (300, 150) and image.mode == "RGB"
        pixels = np.asarray(image)
        assert pixels[0, 0].tolist() == [255, 255, 255] and pixels.min() == 0
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_figures_are_drawn_once_and_never_laid_out_on_trial(tmp_path, monkeypatch):
    """What made the plots of a run cost more than the run: layouts draw every text twice more."""
    drawings, draw = [], FigureCanvasAgg.draw
    monkeypatch.setattr(FigureCanvasAgg, "draw", lambda canvas: (drawings.append(canvas), draw(canvas)))
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", None)
    monkeypatch.setattr(Figure, "draw_without_rendering", None)
    files = result(fabricate.log(count=20)).plots(tmp_path)
    assert len(drawings) == len(files) == 5


def test_every_kernel_of_a_roofline_has_a_label():
    found = result(fabricate.log(count=40))
    for axes in drawn("roofline", found):
        axes.figure.draw_without_rendering()
        labels = " ".join(said(axes))
        names = sum(1 + text.count(", ") + sum(map(int, re.findall(r"\+(\d+)$", text))) for text in said(axes)
                    if not re.search(r"[TF]B?/s|FLOP/s", text))
        assert names == sum(len(dots.get_offsets()) for dots in axes.collections) > 0, labels


def test_batches_that_no_step_had_leave_a_gap_in_the_composition():
    data = Composition(np.array([3, 4, 6, 10]), np.array([5, 4, 3, 2]), ["gemm", "waiting for the CPU"],
                       np.full((4, 2), 0.5))
    assert data.places.tolist() == [0, 1, 3, 5]
    found = result(fabricate.log(count=40))
    bins = composition(found.history, found.usage).bins
    above, below = drawn("composition", found)
    gaps = int((np.diff(bins) > 1).sum())
    assert gaps and said(below).count("no steps between") == gaps and len(above.lines) == 1 + gaps
    assert len(numbers(below.xaxis)) == len(bins) and below.get_xlim()[0] < 0


@pytest.mark.parametrize(("engines", "begins"), [(1, "up to"), (2, "fullest engine: up to")])
def test_the_fullest_engine_is_one_of_several(engines, begins):
    cache = drawn("timeline", result(fabricate.log(count=10, engines=engines)))[3]
    assert cache.get_title(loc="right").startswith(begins)
