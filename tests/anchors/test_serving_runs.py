"""Serving runs of vLLM 0.22 on an H200, played again."""

import pytest
from attrs import evolve

from benchmarks.research.serving import comparison
from benchmarks.research.serving.recordings import ServerSpec
from ksim.foundation.config import Choice
from tests.anchors.errors import DATA

RUNS = DATA / "h200"
pytestmark = pytest.mark.skipif(not RUNS.exists(), reason=f"the runs are not at {RUNS}")


#: A small model: the host decides how long its steps take, and no run of it was seen when hosts were fitted.
HOST_BOUND = "llama-3.2-1b"
#: What the host decides, too, and another oracle for kernels need not play again.
HOSTS = (HOST_BOUND, "eager", "starved")


@pytest.mark.parametrize(("oracle", "runs", "ttft", "tpot", "throughput"), [
    ("measured", 44, 6.0, 3.0, 2.0),  # found 3.5, 1.8 and 1.7 %, and of energy 4.0
    ("learned", 29, 8.0, 4.0, 3.0),  # 6.0, 2.0 and 2.1 %, and 2.1
])
def test_runs_come_out_as_measured(oracle, runs, ttft, tpot, throughput, tmp_path):
    """On the median, at the pace of their hosts; ten of 44 runs are without graphs."""
    for path in RUNS.iterdir():
        if oracle == "measured" or not any(name in path.name for name in HOSTS):
            (tmp_path / path.name).symlink_to(path)
    report = comparison.serving(tmp_path, ServerSpec(oracle=Choice(oracle)))
    small = [run for run in report.runs if run.recording == HOST_BOUND]
    report = evolve(report, runs=tuple(run for run in report.runs if run.recording != HOST_BOUND))
    assert len(report.runs) == runs
    assert report.median_ape("ttft_p50_ms") <= ttft
    assert report.median_ape("tpot_p50_ms") <= tpot
    assert report.median_ape("throughput") <= throughput
    assert report.median_ape("itl_p99_ms") <= 10.0  # found 4.5 %
    assert report.median_ape("joules") <= 8.0  # what kernels teach, no run
    if oracle == "measured" and small:
        _check_host_bound(evolve(report, runs=tuple(small)))


def _check_host_bound(report):
    """Found 12.9, 6.6, 8.5 and 2.3 %, and of energy 3.6: what is missing is how bursts come in.

    Runs that are no bursts have 6.7 and 3.7 % of TTFT and TPOT.
    """
    assert len(report.runs) == 16
    assert report.median_ape("ttft_p50_ms") <= 15.0
    assert report.median_ape("tpot_p50_ms") <= 8.0
    assert report.median_ape("itl_p99_ms") <= 12.0
    assert report.median_ape("throughput") <= 4.0
    assert report.median_ape("joules") <= 8.0
    flowing = evolve(report, runs=tuple(run for run in report.runs if not run.run.startswith("static")))
    assert flowing.median_ape("ttft_p50_ms") <= 8.0
    assert flowing.median_ape("tpot_p50_ms") <= 4.5


@pytest.mark.parametrize(("recording", "median", "late"), [
    ("qwen3-30b-a3b", 3.0, 10.0), ("llama-3.1-8b_starved", 3.0, 10.0),
])
def test_steps_take_as_long_as_recorded(recording, median, late):
    """From one call of the scheduler to the next; found 1.6 and 2.8 %, and 5.9 and 7.8."""
    figures = comparison.steps_as_table(comparison.intervals(RUNS / f"engine_{recording}.json", ServerSpec()))
    assert figures["step_median_ape"] <= median and figures["step_p90_ape"] <= late
    assert figures["steps"] > 4000
