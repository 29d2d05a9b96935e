"""The capacity of one server, which queueing theory knows."""

import numpy as np
import pytest

from ksim.results.steps import Floats
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.judge import RateAnswer, highest_rate
from ksim.study.capacity.targets import Target
from ksim.study.capacity.trial import Criteria
from ksim.study.workers import InProcess
from tests.study.capacity.loads import one_server, root, services, waits_longer

CONSTANT, SEVERAL = {"kind": "fixed", "value": 1}, {"kind": "uniform", "low": 1, "high": 3}


def asked(scenario: Scenario, metric: str, limit: float) -> RateAnswer:
    """The capacity of *scenario*, without errors of the model."""
    latency, statistic = metric.split(":")
    criteria = Criteria((Target(latency, statistic, limit),), requests=500, model_errors=False, seed=1)
    return highest_rate(scenario, criteria, InProcess())


def mean_wait(rate: float, seconds: Floats) -> float:
    """Pollaczek and Khinchine: lambda E[S^2] / 2 (1 - rho)."""
    return rate * float((seconds**2).mean()) / (2 * (1 - rate * float(seconds.mean())))


def test_md1_percentile(tmp_path):
    scenario = one_server(tmp_path, CONSTANT)
    service = services(scenario).mean()
    answer = asked(scenario, "queue:p90", 3 * service)
    load = root(lambda load: waits_longer(load, 3.0) - 0.1, 1.0)
    assert load / service in answer.interval
    assert answer.rate * service == pytest.approx(load, rel=0.08)


def test_mg1_mean(tmp_path):
    """One to three tokens, all equally likely.

    An interval of 95 % misses the truth now and then; tests/study/capacity/test_coverage.py counts how often.
    """
    scenario = one_server(tmp_path, SEVERAL)
    seconds = np.unique(services(scenario).round(7))
    assert len(seconds) == 3
    answer = asked(scenario, "queue:mean", 2 * seconds.mean())
    truth = root(lambda rate: mean_wait(rate, seconds) - 2 * seconds.mean(), 1 / seconds.mean())
    assert truth in answer.interval
    assert answer.interval.high / answer.interval.low < 1.3
