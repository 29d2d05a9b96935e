"""Hopeless runs end early, and others are not changed."""

import numpy as np
import pytest
from attrs import evolve

from ksim.results.history import History
from ksim.results.series import saturation
from ksim.study.capacity.targets import Target
from ksim.study.capacity.traffic import Traffic
from ksim.study.capacity.trial import BacklogGrows, Criteria, RateRun, grows, observe
from ksim.study.experiment import Stopped, play
from tests.study.capacity.loads import batching

COUNT = 500
#: Below and above what the engine of `batching` completes when many wait: 45 requests/s.
STABLE, HOPELESS = (10.0, 30.0, 40.0), (70.0, 90.0, 150.0)


def played(rate: float, seed: int, watch: bool) -> History:
    requests = Traffic.of(batching().workload, COUNT).requests(rate, seed)
    return play(batching(), requests, BacklogGrows(COUNT) if watch else None).history


@pytest.mark.parametrize("rate", STABLE)
def test_the_watcher_changes_nothing(rate):
    one, other = played(rate, 1, watch=False), played(rate, 1, watch=True)
    for name in ("arrival", "admitted", "first_token", "finished"):
        np.testing.assert_array_equal(getattr(one.requests, name), getattr(other.requests, name))
    assert one.duration == other.duration
    assert (one.steps.joules == other.steps.joules).all()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rate", HOPELESS)
def test_a_run_that_is_stopped_would_have_been_saturated(rate, seed):
    with pytest.raises(Stopped, match="the backlog kept growing over the first"):
        played(rate, seed, watch=True)
    whole = played(rate, seed, watch=False)
    assert saturation(whole)["saturated"]
    waited = whole.requests.ttft
    assert waited[-50:].mean() > 3 * waited[:50].mean()


@pytest.mark.parametrize("load", [0.7, 0.9])
def test_a_stable_queue_is_hardly_ever_called_growing(load):
    """One server with exponential service, looked at each 50 arrivals; Lindley's recursion."""
    called = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        gaps, service = rng.exponential(1 / load, 999), rng.exponential(1.0, 1000)
        walk = np.concatenate([[0.0], np.cumsum(service[:-1] - gaps)])
        arrival, wait = np.concatenate([[0.0], np.cumsum(gaps)]), walk - np.minimum.accumulate(walk)
        queue = np.arange(1, 1001) - np.searchsorted(np.sort(arrival + wait), arrival, side="right")
        called += any(grows(queue[:until].astype(float)) for until in range(100, 1000, 50))
    assert called <= 3


def test_an_observation_says_that_it_was_stopped():
    plan = Criteria((Target.parse("ttft:p90:1s"),), requests=COUNT)
    seen = observe(plan, RateRun(batching(), 90.0, 0))
    assert seen.hopeless
    assert seen.saturated
    again = observe(plan, RateRun(batching(), 20.0, 0))
    assert not again.hopeless
    assert again.numbers["request_goodput"] == pytest.approx(20.0, rel=0.15)
    assert evolve(plan, seed=1) != plan
