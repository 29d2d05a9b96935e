"""The figure of a capacity question."""

import io
import math
import warnings

from ksim.report.plots.capacity import Curve, capacity_figure


def test_a_highest_rate_may_have_an_open_interval():
    """Few replications leave it without an upper end; the figure is drawn all the same."""
    band = (0.9, 0.8, 1.0)
    curve = Curve("TP8", [5.0, 10.0], goodput=[band, band], attainment={"ttft:p99:1s": [band, band]},
                  shares={"ttft:p99:1s": 0.99}, highest=(16.3, 0.0, math.inf))
    file = io.BytesIO()
    with warnings.catch_warnings(action="error"):
        capacity_figure("llama", [curve], rate=10.0).savefig(file)
    assert file.getvalue().startswith(b"\x89PNG")
