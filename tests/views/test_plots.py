import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from ksim.results.history import History
from ksim.results.kernels import FamilyShare, KernelUsage
from ksim.views.charts import PALETTE
from ksim.views.drawing import canvas, grid_of, looks
from ksim.views.figures.kernels import MOST, composition, largest
from ksim.views.figures.studies import trace_chart
from tests.results import fabricate


def test_composition_adds_up_to_the_steps():
    history = History(fabricate.log(count=30, ranks=2))
    data = composition(history, KernelUsage.of(history.steps))
    assert (data.parts[0], data.parts[-1]) == ("gemm", "waiting for the CPU")
    assert set(data.parts[1:-1]) == {"all-reduce", "elementwise", "attention"}
    assert data.steps.sum() == len(history.steps)
    total = (data.seconds.sum(axis=1) * data.steps).sum()
    assert total == pytest.approx((history.steps.end - history.steps.start + history.host_gaps).sum())


@pytest.mark.parametrize(("count", "shown"), [(3, 3), (MOST, MOST), (MOST + 1, MOST + 1), (MOST + 5, MOST + 1)])
def test_families_that_draw_little_are_shown_together(count, shown):
    found = [FamilyShare(f"kernel{i}", 0.0, 1.0 + i, 0.5, 0.01 * i) for i in range(count)]
    bars = largest(found)
    assert len(bars) == shown and bars[0] == found[-1]
    for name in ("joules", "static", "energy"):
        assert sum(getattr(bar, name) for bar in bars) == pytest.approx(sum(getattr(row, name) for row in found))


@pytest.mark.parametrize("arrivals", [np.cumsum(np.random.default_rng(0).exponential(1, 200)), np.zeros(200)])
def test_a_trace_is_plotted_the_same_each_time(arrivals, tmp_path):
    lengths = np.random.default_rng(1).integers(1, 4000, 200)
    files = [trace_chart(arrivals, lengths, lengths, "A trace").save(tmp_path / name) for name in ("a.png", "b.png")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert Image.open(files[0]).info.keys() <= {"dpi"}


def test_one_late_arrival_does_not_stretch_a_trace():
    arrivals = [*np.linspace(0.0, 100.0, 200), 1e6]
    rate = trace_chart(arrivals, [10] * 201, [10] * 201, "A trace").figure.axes[0]
    assert rate.get_xlim()[1] < 200 and rate.get_title(loc="right").endswith("1 later, the last at 1,000,000 s")


@pytest.mark.parametrize("note", ["", "a note"])
def test_headlines_stand_above_all_axes(note):
    with looks():
        figure = canvas(5, 4, "A headline", note)
        (axes,) = grid_of(figure, 1, 1)
        axes.set_title("An axis")
        figure.draw_without_rendering()
    assert axes.title.get_window_extent().y1 <= min(text.get_window_extent().y0 for text in figure.texts)


def test_an_empty_trace_is_plotted(tmp_path):
    assert trace_chart([], [], [], "none").save(tmp_path / "empty.png").stat().st_size > 0


def test_the_users_settings_neither_matter_nor_change():
    mpl.rcParams["lines.linewidth"] = 9
    with looks():
        assert mpl.rcParams["lines.linewidth"] < 3
    assert mpl.rcParams["lines.linewidth"] == 9
    mpl.rcdefaults()


def test_colours_differ():
    assert len(set(PALETTE)) == len(PALETTE)
