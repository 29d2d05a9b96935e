"""Runs that are stopped early, since they are certain to miss a requirement."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.study.experiment import Stopped, play
from ksim.study.pareto import Requirement
from ksim.study.tuning.plan import CertainMiss, Limit, violation
from tests.properties import examples

LOADED = Scenario.of({
    "model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "serve": {"max_model_len": 4096},
    "workload": {"synthetic": {
        "count": 64, "arrivals": {"process": "poisson", "rate": 400.0},
        "prompt": {"kind": "uniform", "low": 50, "high": 400}, "output": {"kind": "uniform", "low": 2, "high": 20}}}})
POINTS = [{"serve.max_num_seqs": seqs, "serve.max_num_batched_tokens": tokens}
          for seqs in (1, 4, 16, 64) for tokens in (256, 2048)]


def limit(statistic, bound=10.0, metric="ttft"):
    return Limit.of(Requirement.parse(f"{statistic}_{metric}_ms<{bound}"))


@examples(400)
@given(st.lists(st.floats(0, 20), min_size=1, max_size=60), st.data(),
       st.sampled_from(["mean", "median", "p50", "p90", "p95", "p99"]))
def test_what_is_missed_for_sure_is_missed_in_the_end(values, data, statistic):
    known = data.draw(st.integers(0, len(values)))
    requests = data.draw(st.integers(len(values), 80))  # some of them may be rejected, and have no latency
    values = np.array(values)
    whole = (values.mean() if statistic == "mean" else
             np.percentile(values, 50 if statistic == "median" else int(statistic[1:])))
    assert not limit(statistic).missed(values[:known], requests) or whole > 10.0 * (1 - 1e-12)
    if known == len(values) == requests and not limit(statistic).missed(values, requests):
        rank = np.sort(values)[int(np.floor({"mean": 0, "median": 0.5}.get(
            statistic, int(statistic[1:] if statistic[0] == "p" else 0) / 100) * (requests - 1)))]
        assert statistic == "mean" or rank <= 10.0


@pytest.mark.parametrize("text", ["p99_ttft_ms>10", "output_throughput<100", "p99_itl_ms<10", "std_ttft_ms<10"])
def test_what_later_requests_may_change_is_no_limit(text):
    assert Limit.of(Requirement.parse(text)) is None


@pytest.mark.parametrize("settings", POINTS)
def test_stopped_runs_would_have_missed_and_others_are_the_same(settings):
    scenario = LOADED.with_values(settings)
    bounds = [Requirement.parse(text) for text in ("p99_ttft_ms<60", "mean_tpot_ms<=1.5", "median_e2el_ms<70")]
    whole = simulate(scenario).summary
    patient, hasty = (CertainMiss([*map(Limit.of, bounds)], [bound.key for bound in bounds], stop)
                      for stop in (False, True))
    assert play(scenario, rule=patient).summary == whole
    try:
        assert play(scenario, rule=hasty).summary == whole
        assert patient.at_stop is None
    except Stopped as error:
        assert any(bound.missed(whole) for bound in bounds)
        assert f"stopped after {hasty.at_stop['requests']:,} of 64 requests" in str(error)
        assert patient.at_stop == hasty.at_stop and hasty.at_stop["requests"] < 64
        assert any(violation(bound, hasty.at_stop[bound.key]) > 0 for bound in bounds)


def test_early_stops_save_steps():
    stopped = [settings for settings in POINTS if _stops(LOADED.with_values(settings))]
    assert 2 <= len(stopped) < len(POINTS)


def _stops(scenario):
    try:
        play(scenario, rule=CertainMiss([limit("p99", 60.0)], []))
    except Stopped:
        return True
    return False


@pytest.mark.parametrize(("text", "value", "expected"), [
    ("p99_ttft_ms<10", 20.0, np.log(2)), ("p99_ttft_ms<10", 5.0, -np.log(2)), ("p99_ttft_ms<10", 10.0, 1e-9),
    ("p99_ttft_ms<=10", 10.0, 0.0), ("output_throughput>=10", 5.0, np.log(2)), ("p99_ttft_ms<10", None, 1.0),
    ("slo_attainment>0", 0.0, 1e-9),
])
def test_violations_are_above_zero_exactly_where_a_bound_is_missed(text, value, expected):
    assert violation(Requirement.parse(text), value) == pytest.approx(expected)
