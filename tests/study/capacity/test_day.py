"""Questions about a load that varies: its busiest time counts, and GPUs may follow it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ksim
from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.day import LoadShape, at_its_peak
from ksim.workload.rates import Phase, Rates

PHASES = [{"rate": 20, "for": "60 s"}, {"rate": 20, "to": 80, "for": "120 s"}, {"rate": 60, "amplitude": 20,
                                                                                "period": "60 s", "for": "60 s"}]


def scenario(arrivals):
    return Scenario.of({
        "model": "llama-3.2-1b", "gpu": "h100", "oracle": "roofline", "serve": {"max_model_len": 1024},
        "energy": {"price_per_gpu_hour": 2.0}, "workload": {"synthetic": {
            "count": 100, "arrivals": arrivals, "prompt": {"kind": "fixed", "value": 64},
            "output": {"kind": "fixed", "value": 4}}}})


def test_the_load_is_steady_at_the_peak_of_its_shape():
    steady, shape = at_its_peak(scenario({"phases": PHASES, "spikes": [{"at": "10 s", "rate": 100, "for": "30 s"}]}))
    assert shape.peak == pytest.approx(120) and shape.length == pytest.approx(240 / 288)
    assert steady.workload.synthetic.arrivals.rate == shape.peak and not steady.workload.synthetic.arrivals.changes
    assert shape.rates.sum() * shape.length == pytest.approx(20 * 60 + 50 * 120 + 60 * 60 + 100 * 30)
    plain = scenario({"process": "poisson", "rate": 3.0})
    assert at_its_peak(plain) == (plain, None)


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0, 9), st.floats(1, 50)), min_size=1, max_size=5))
def test_arrivals_to_expect_are_the_integral_and_the_inverse_of_their_times(parts):
    rates = Rates([Phase(rate, length, to=to) for rate, to, length in parts])
    times = np.linspace(0, rates.length, 50)
    expected = rates.expected_by(times)
    assert expected[-1] == pytest.approx(rates.expected) and (np.diff(expected) >= -1e-9).all()
    some = np.linspace(0, 0.999 * rates.expected, 20)
    assert rates.expected_by(rates.times(some)) == pytest.approx(some, rel=1e-6, abs=1e-6)


def test_gpus_that_follow_cost_as_much_as_each_part_needs():
    shape = LoadShape(1800.0, np.array([1.0, 3.9, 4.1, 0.0]))
    assert shape.gpu_hours(3, 2, 2.0) == (2 * 0.5 * 12, 2 * 0.5 * (1 + 2 + 3))
    assert "12.0 GPU-hours" in shape.said(3, 2, 2.0) and "50.0 %" in shape.said(3, 2, 2.0)


def test_a_capacity_and_a_plan_are_of_the_busiest_time():
    asked = scenario(PHASES)
    found = ksim.capacity(asked, ["ttft:median:20ms"], requests=40, replications=2, model_errors=False, jobs=1)
    assert found.rate == pytest.approx(80, rel=0.01)
    assert any("requests/s, 45.0 on the mean" in note for note in found.notes)
    planned = ksim.plan(asked, None, ["ttft:median:20ms"], over={"serve.tensor_parallel_size": [1]}, requests=40,
                        replications=2, finalists=1)
    assert planned.rate == found.rate


@pytest.mark.parametrize("arrivals", [[{"rate": 5}], {"process": "poisson", "rate": 5.0, "spikes": [
    {"at": "1 s", "rate": 5, "for": "1 s"}]}])
def test_a_load_without_an_end_is_refused(arrivals):
    with pytest.raises(ConfigError, match="has no end"):
        at_its_peak(scenario(arrivals))
