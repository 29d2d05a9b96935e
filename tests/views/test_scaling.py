"""What a run of a fleet that is scaled shows: its report, its figure, and its page."""

import re

import numpy as np
import pytest
from pyarrow import parquet

from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate, stream
from ksim.views.figures.scaling import ScaledMoments, by_arrival, scaling_chart
from ksim.views.page.over_time import saved_moments, saved_scaling
from ksim.views.page.reading import SavedRun
from ksim.views.page.run import run_page
from tests.study.fleets import table

#: Dollars of a GPU-hour in it.
PRICE = 3.0


@pytest.fixture(scope="module")
def result():
    return simulate(Scenario.of(table()))


@pytest.fixture(scope="module")
def saved(result, tmp_path_factory):
    return SavedRun.read(result.save(tmp_path_factory.mktemp("runs") / "run", trace=False, plots=False))


@pytest.fixture(scope="module")
def moments(result):
    return ScaledMoments.of(result.history, result.limits, result.summary, (result.replicas, result.scaling))


def test_the_report_has_a_few_lines_on_sizes(result):
    # Two replicas at the start, a third one from 6 s on, which starts, and goes at 20 s.
    duration, gone = result.summary["duration"], max(result.replicas["time_s"].to_pylist())
    hours = (2 * duration + gone - 6.0) / 3600
    block = result.report(300).split("Autoscaling")[1].split("Pools")[0]
    for words in ("decisions 2", "starts 1", "drains 1", f"replicas, mean {3600 * hours / duration:.2f}",
                  f"GPU-hours allocated {hours:.4f}", f"$ for GPUs {PRICE * hours:.4f}"):
        assert re.search(rf"{re.escape(words.rpartition(' ')[0])} +{words.rpartition(' ')[2]}\b", block), words


def test_gpus_that_are_away_are_not_idle(result):
    assert sum(result.kernels["seconds"].to_pylist()) == pytest.approx(result.summary["allocated_gpu_seconds"])


def test_decisions_keep_what_was_seen(result):
    up, down = result.scaling.to_pylist()
    assert (up["time_s"], up["before"], up["replicas"]) == (6.0, 2, 3) and (down["time_s"], down["replicas"]) == (20, 2)
    assert (up["ready"], up["starting"], up["draining"]) == (2, 0, 0) and down["ready"] == 3
    arrivals = np.array([request.arrival for request in result.history.requests.requests])
    assert up["request_rate"] == ((arrivals > 5.0) & (arrivals <= 6.0)).sum()
    assert 0 < up["ttft_s"] < 1 and 0 <= up["kv_usage"] < 0.1 and up["held"] == 0


def test_the_figure_has_what_the_tables_say(result, moments):
    chart = scaling_chart(moments)
    titles = [panel.title for panel in chart.panels]
    assert titles == ["Requests that arrive per second", "Replicas of a", "Dollars per hour for the GPUs of replicas",
                      "Watts of all GPUs", "Within the targets, by when requests arrived"]
    lines = {mark.name: mark for mark in chart.panels[1].marks}
    assert {*lines} == {"wanted", "ready", "starting"}  # the one that goes has no request, and drains for no time
    assert [*zip(lines["wanted"].x, lines["wanted"].y, strict=True)] == [
        (0, 2), (6, 3), (20, 2), (result.summary["duration"], 2)]
    assert chart.panels[2].marks[0].y.max() == pytest.approx(3 * PRICE)
    whole = np.array([0.0, moments.end])
    assert moments.cost.means(whole)[0] * moments.end / 3600 == pytest.approx(result.summary["gpu_dollars"])
    assert moments.watts.mean() == pytest.approx(result.summary["average_watts"])


def test_without_prices_and_targets_it_has_gpus_and_no_attainment():
    plain = table(energy={}, slo={})
    plain["workload"]["synthetic"]["count"] = 60
    result = simulate(Scenario.of(plain))
    moments = ScaledMoments.of(result.history, result.limits, result.summary, (result.replicas, result.scaling))
    assert [panel.title for panel in scaling_chart(moments).panels][2:] == ["GPUs allocated", "Watts of all GPUs"]


def test_requests_count_by_when_they_arrive():
    arrival, ended, kept = np.array([0.0, 1, 5, 5, 9]), np.array([1, 1, 1, 0, 1], bool), np.array([1, 0, 1, 1, 0], bool)
    rates, shares = by_arrival(arrival, ended, kept, 10.0, bins=5)
    assert rates.tolist() == [1, 0, 1, 0, 0.5]
    np.testing.assert_array_equal(shares, [0.5, np.nan, 1.0, np.nan, 0.0])
    assert by_arrival(arrival, ended, None, 10.0)[1] is None


def test_a_saved_run_shows_the_same(result, moments, saved):
    again = saved_scaling(saved, len(moments.watts), len(moments.arrived))
    for name in ("watts", "arrived", "kept"):
        np.testing.assert_allclose(getattr(again, name), getattr(moments, name), rtol=1e-6, atol=1e-6)
    assert again.prices == pytest.approx(moments.prices)
    # Watts per GPU in the figure of the whole run count static power of GPUs that are there.
    assert saved_moments(saved).watts["a"].mean() * 3 == pytest.approx(result.summary["average_watts"])


def test_the_page_has_the_figure_and_each_decision(saved):
    document = run_page(saved)
    names = [name for name, _, _ in document.sections]
    assert names.index("scaling") == names.index("timeline") + 1 and "scaling" in document.figures
    text = next(str(body) for name, _, body in document.sections if name == "scaling")
    rows = [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)]
    assert [row[:3] for row in rows if "a" in row[1:2]] == [["6.00", "a", "2 to 3"], ["20.0", "a", "3 to 2"]]


def test_a_streamed_run_writes_the_same_tables(result, saved, tmp_path):
    stream(Scenario.of(table()), tmp_path / "streamed")
    for name in ("scaling", "replicas"):
        assert parquet.read_table(tmp_path / "streamed" / f"{name}.parquet") == parquet.read_table(
            saved.directory / f"{name}.parquet")
    streamed = SavedRun.read(tmp_path / "streamed")
    for key in ("scaling_decisions", "replica_starts", "replica_drains", "mean_replicas"):
        assert streamed.summary[key] == result.summary[key]
    assert streamed.summary["pools"]["a"]["scaling_decisions"] == 2
    assert "scaling" in [name for name, _, _ in run_page(streamed).sections]


def test_a_fleet_of_one_size_has_none_of_it(tmp_path):
    plain = table(autoscaler=None, pools={"a": {"role": "both", "replicas": 2}})
    plain["workload"]["synthetic"]["count"] = 20
    result = simulate(Scenario.of(plain))
    result.save(tmp_path / "run", trace=False)
    assert result.scaling is None and "Autoscaling" not in result.report()
    names = {path.name for path in (tmp_path / "run").rglob("*")}
    assert not names & {"scaling.parquet", "replicas.parquet", "scaling.png"} and "timeline.png" in names
    assert not result.summary.keys() & {"scaling_decisions", "mean_replicas"}
