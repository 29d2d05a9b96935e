"""How differences change with the load."""

from pathlib import Path

import pytest

from ksim.validation.benchmarks.comparison import Compared, trends
from ksim.validation.benchmarks.recorded import ClientLoad, Recorded


def at(concurrency, measured, simulated, metric="ttft_mean"):
    run = Recorded(Path("r.json"), "r", "a client", 9, load=ClientLoad(concurrency=concurrency))
    return Compared(run, "", {metric: (measured, simulated)})


@pytest.mark.parametrize(("low", "high", "says"), [
    ((0.10, 0.10), (0.90, 0.30), "+600 ms at concurrency 64, so it grows with the load: the queue"),
    ((0.15, 0.10), (0.36, 0.30), "about as much at any load: what a request takes alone differs"),
    ((0.30, 0.10), (0.30, 0.30), "so it shrinks with the load"),
])
def test_a_difference_grows_shrinks_or_stays(low, high, says):
    (line,) = trends([at(1, *low), at(64, *high)])
    assert line.startswith("TTFT: ") and says in line


def test_runs_that_fit_and_single_runs_have_no_trend():
    assert not list(trends([at(1, 0.1, 0.1), at(64, 0.3, 0.3)]))
    assert not list(trends([at(1, 0.2, 0.1)])) and not list(trends([at(1, 0.2, 0.1), at(1, 0.2, 0.1)]))
    assert next(trends([at(1, 0.2, 0.1, "tpot_mean"), at(2, 0.2, 0.1, "tpot_mean")])).startswith("TPOT: ")
