"""The figure of a capacity question."""

import io
import math
import warnings

import pytest

from ksim.report.plots.studies import Curve, capacity_figure


def test_a_highest_rate_may_have_an_open_interval():
    """Few replications leave it without an upper end; the figure is drawn all the same."""
    band = (0.9, 0.8, 1.0)
    curve = Curve("TP8", [5.0, 10.0], goodput=[band, band], attainment={"ttft:p99:1s": [band, band]},
                  shares={"ttft:p99:1s": 0.99}, highest=(16.3, 0.0, math.inf))
    file = io.BytesIO()
    with warnings.catch_warnings(action="error"):
        capacity_figure("llama", [curve], rate=10.0).savefig(file)
    assert file.getvalue().startswith(b"\x89PNG")


@pytest.mark.parametrize("setups", [1, 2, 3])
def test_each_band_has_a_colour_of_its_own_and_each_line_a_name(setups):
    band = [(0.9, 0.8, 1.0)] * 2
    targets = ("ttft:p99:1s", "tpot:p99:50ms")
    curves = [Curve(f"TP{size}", [5.0, 10.0], band, dict.fromkeys(targets, band), dict.fromkeys(targets, 0.99),
                    (8.0, 7.0, 9.0)) for size in range(1, 1 + setups)]
    above, _ = capacity_figure("llama", curves).axes
    bands = [tuple(one.get_facecolor()[0]) for one in above.collections]
    assert len(bands) == len({*bands}) == 2 * setups
    named = [text.get_text() for text in above.get_legend().get_texts()]
    assert named == [f"TP{size}, {what}" for size in range(1, 1 + setups) for what in (*targets, "highest rate")]
    assert not {patch.get_facecolor()[3] for patch in above.patches} - {0.0}  # hatched, so that bands show
