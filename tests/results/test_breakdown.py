"""Saved phases read back: what is behind each statistic adds up to it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.errors import ConfigError
from ksim.results.attribution import METRICS, STATISTICS, Breakdown, behind, paired
from ksim.views.figures.run import breakdown_chart, changes_chart
from ksim.views.result import Result
from tests.properties import examples

from . import by_hand, fabricate


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run, another of the same requests on two GPUs, and one of other requests, in which one is rejected."""
    folder = tmp_path_factory.mktemp("runs")
    logs = {"one": fabricate.log(count=40), "two": fabricate.log(count=60, ranks=2), "small": by_hand.small()}
    for name, log in logs.items():
        Result(log).save(folder / name, plots=False, trace=False)
    return folder


def test_statistics_are_those_of_the_summary(runs):
    statistics = Breakdown.read(runs / "one").statistics()
    summary = Result(fabricate.log(count=40)).summary
    assert statistics.keys() == {f"{statistic}_{metric}" for metric in METRICS for statistic in STATISTICS}
    for name, seconds in statistics.items():
        assert 1e3 * seconds.sum() == pytest.approx(summary[f"{name}_ms"], rel=1e-9)


@given(st.integers(1, 300), st.integers(0, 99), st.sampled_from(STATISTICS))
@examples(50)
def test_parts_of_a_statistic_add_up_to_it(count, seed, statistic):
    seconds = np.random.default_rng(seed).exponential(1.0, (count, 4)) * [1.0, 10.0, 0.0, 0.1]
    found, totals = behind(statistic, seconds), seconds.sum(axis=1)
    expected = {"mean": totals.mean(), "median": np.median(totals), "p99": np.percentile(totals, 99)}[statistic]
    assert found.sum() == pytest.approx(expected, rel=1e-9)
    assert (found >= 0).all() and found[2] == 0


def test_a_percentile_is_split_as_the_requests_around_it_are():
    """Ninety that compute, and ten that wait as well."""
    seconds = np.array([[0.0, 1.0]] * 90 + [[9.0, 1.0]] * 10)
    assert behind("median", seconds).tolist() == [0.0, 1.0]
    assert behind("p99", seconds).tolist() == pytest.approx([9.0, 1.0])


def test_nothing_takes_no_time():
    assert behind("p99", np.zeros((3, 2))).tolist() == [0.0, 0.0]


def test_two_runs_are_compared_over_the_requests_of_both(runs):
    one, two = paired(Breakdown.read(runs / "one"), Breakdown.read(runs / "two"))
    assert one.names == two.names and "decode.gemm" in one.names
    assert one.ids.tolist() == two.ids.tolist() == sorted(Breakdown.read(runs / "one").ids)
    assert one.of(7)["all"].sum() == pytest.approx(Breakdown.read(runs / "one").of(7)["all"].sum())
    assert not one.to_first[:, one.names.index("communication")].any()
    assert two.to_first[:, two.names.index("communication")].all()


def test_bad_runs_and_requests_are_clear_errors(runs, tmp_path):
    with pytest.raises(ConfigError, match="there is no run"):
        Breakdown.read(tmp_path)
    small = Breakdown.read(runs / "small")
    with pytest.raises(ConfigError, match="no request 70 among 3; the nearest are 7, 8"):
        small.place(70)
    with pytest.raises(ConfigError, match="request 9 is rejected: too long"):
        small.of(9)
    old = Result(by_hand.small()).save(tmp_path / "old", plots=False, trace=False)
    (old / "attribution.parquet").unlink()
    with pytest.raises(ConfigError, match=r"older ksim; run .*scenario.toml again"):
        Breakdown.read(old)
    (old / "attribution.parquet").write_text("no table")
    with pytest.raises(ConfigError, match=r"attribution.parquet: cannot be read"):
        Breakdown.read(old)
    other = Result(fabricate.log(count=3)).save(tmp_path / "other", plots=False, trace=False)
    with pytest.raises(ConfigError, match="no request completed in both runs"):
        paired(small, Breakdown.read(other))


def test_figures_are_the_same_each_time(tmp_path):
    groups, seconds = ["queue", "decode"], np.array([0.5, 1.5])
    for chart, panels in ((breakdown_chart, {"TTFT": {"mean": seconds, "p99": 2 * seconds}, "all": {"": 0 * seconds}}),
                          (changes_chart, [{"mean": (seconds, 2 * seconds)}, {"p99": (seconds, 0 * seconds)}])):
        files = [chart("A title", "a note", panels, groups).save(tmp_path / name) for name in ("a.png", "b.png")]
        assert files[0].read_bytes() == files[1].read_bytes()
