"""Warm tables of prices make runs faster, and change no bit of them."""

import numpy as np
import pytest

from ksim.flow.log import Log
from ksim.results.history import History
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import serve
from ksim.study.capacity.early_stop import setup
from ksim.study.capacity.traffic import Traffic
from tests.study.capacity.loads import batching


@pytest.mark.parametrize("settings", [{}, {"data_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=str)
def test_a_run_is_the_same_whatever_ran_before(settings):
    scenario = batching(**settings) if not settings else batching(**settings).with_values({"nodes": 1, "gpu": "h100"})
    traffic = Traffic.of(scenario.workload, 50)
    for rate in (60.0, 8.0):
        _played(setup(scenario), traffic, rate)
    warm, cold = _played(setup(scenario), traffic, 25.0), _played(Fleet.of(scenario), traffic, 25.0)
    for name in ("first_token", "last_token"):
        np.testing.assert_array_equal(getattr(warm.requests, name), getattr(cold.requests, name))
    np.testing.assert_array_equal(warm.steps.joules, cold.steps.joules)


def _played(fleet: Fleet, traffic: Traffic, rate: float) -> History:
    log = Log()
    serve(fleet, traffic.requests(rate, 1), log, lambda: None)
    return History(log)
