"""The highest rate that keeps targets, of an engine that batches."""

import pytest
from attrs import evolve

from ksim.foundation.errors import ConfigError, KsimError
from ksim.simulation.simulate import simulate
from ksim.study.capacity.judge import RateAnswer, decide, highest_rate
from ksim.study.capacity.search import OutOfReach
from ksim.study.capacity.targets import Target
from ksim.study.capacity.trial import Criteria, RateRun, observe, runnable
from ksim.study.workers import InProcess
from tests.study.capacity.loads import batching
from tests.study.orders import backwards

PLAN = Criteria((Target.parse("ttft:p90:500ms"), Target.parse("tpot:mean:40ms")), requests=250, replications=4,
                seed=1)


@pytest.fixture(scope="module")
def answer() -> RateAnswer:
    return highest_rate(batching(), PLAN, InProcess())


def test_the_answer_lies_between_rates_that_were_tried(answer):
    assert answer.points[0].rate < answer.rate < answer.points[-1].rate
    assert answer.traffic.low <= answer.rate <= answer.traffic.high
    assert answer.interval.low <= answer.traffic.low
    assert answer.interval.high >= answer.traffic.high
    assert answer.model is not None
    assert answer.rate in answer.model
    assert 0 < answer.model_share < 1
    assert answer.binds in PLAN.targets
    assert [point.rate for point in answer.points] == sorted(point.rate for point in answer.points)


def test_points_tell_what_they_cost(answer):
    point = max(answer.points, key=lambda one: one.replications)
    share, interval = point.attainment[PLAN.targets[0]]
    assert 0 <= interval.low <= share <= interval.high <= 1
    assert point.values[PLAN.targets[1]][0] < 1
    assert point.goodput[0] <= point.rate
    assert {"joules_per_million_tokens", "total_token_throughput", "gpus"} <= point.numbers.keys()
    assert "usd_per_million_tokens" not in point.numbers


def test_in_whatever_order_trials_end_the_answer_is_the_same(answer, monkeypatch):
    monkeypatch.setattr(InProcess, "run", backwards)
    other = highest_rate(batching(), evolve(PLAN, model_errors=False), InProcess())
    assert (other.rate, other.traffic) == (answer.rate, answer.traffic)
    assert [point.rate for point in other.points] == [point.rate for point in answer.points]


def test_from_another_beginning_it_is_about_the_same(answer):
    plan = evolve(PLAN, model_errors=False)
    assert highest_rate(batching(), plan, InProcess(), near=3 * answer.rate).rate == pytest.approx(answer.rate, rel=0.1)


def test_what_is_far_away_is_decided_at_once(answer):
    low, high = (decide(batching(), factor * answer.rate, PLAN, InProcess()) for factor in (0.5, 1.8))
    assert (low.meets, low.replications) == (True, 2)
    assert (high.meets, high.replications) == (False, 2)


def test_a_trial_can_be_run_again():
    trial = RateRun(batching(), 20.0, 1, draw=2)
    seen, scenario = observe(PLAN, trial), runnable(PLAN, trial)
    summary = simulate(scenario).summary
    assert summary["completed"] == 250
    assert seen.samples[1].value[seen.samples[1].counted > 0].mean() * 1e3 == pytest.approx(summary["mean_tpot_ms"])
    assert scenario.kernel_errors is not None


def test_a_target_that_nothing_keeps():
    with pytest.raises(OutOfReach, match=r"ttft:p90:1ms is out of reach: even at .* requests/s, its p90 is \d+ ms"):
        highest_rate(batching(), evolve(PLAN, targets=(Target.parse("ttft:p90:1ms"),)), InProcess())


def test_too_few_requests():
    with pytest.raises(ConfigError, match=r"100 are too few to tell whether the targets are kept; that takes 200"):
        highest_rate(batching(), Criteria((Target.parse("ttft:p99:1s"),), requests=100), InProcess())


def test_no_request_fits():
    with pytest.raises(KsimError, match="no request can be served: its prompt of"):
        highest_rate(batching(max_model_len=8), PLAN, InProcess())
