"""Estimates of a steady state beside simulations, and the laws that they keep."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.targets import Target
from ksim.study.experiment import play
from ksim.study.planning.estimate import SteadyApart, StepPrompts, station
from ksim.study.planning.ranking import highest_rate, kept
from ksim.study.planning.step_prices import LoadSample, StepPrices

TTFT, TPOT, E2EL = (Target.parse(f"{name}:mean:1s") for name in ("ttft", "tpot", "e2el"))


def scenario(rate, **changes):
    table = {"model": "llama-3.2-1b", "gpu": "h100", "serve": {"max_model_len": 4096},
             "workload": {"synthetic": {"count": 600, "arrivals": {"process": "poisson", "rate": rate},
                                        "prompt": {"kind": "lognormal", "median": 600, "sigma": 0.6},
                                        "output": {"kind": "lognormal", "median": 80, "sigma": 0.6},
                                        "max_tokens": 4000}}}
    return Scenario.of({**table, **changes})


def load_of(asked):
    drawn = [*islice(asked.workload.requests(asked.seed), 600)]
    prompts, outputs = (np.array([getattr(request, name) for request in drawn], float) for name in ("prompt", "output"))
    return LoadSample(prompts, np.zeros(len(drawn)), outputs)


@pytest.fixture(scope="module")
def engine():
    """The engine of the scenario, with its prices and its load."""
    asked = scenario(1.0)
    deployment, load = Deployment.of(asked), load_of(asked)
    return deployment, StepPrices.of(deployment, load), load


@pytest.mark.parametrize("rate", [5.0, 30.0, 60.0])
def test_latencies_are_near_those_of_a_simulation(engine, rate):
    """What simulations are held against: means of TTFT within 15 %, of TPOT within 8 %, at little and at much load."""
    deployment, prices, load = engine
    state = station([deployment], prices, load).steady(np.array([rate]))
    summary = play(scenario(rate)).summary
    assert 1e3 * state.value(TTFT)[0] == pytest.approx(summary["mean_ttft_ms"], rel=0.15)
    assert 1e3 * state.value(TPOT)[0] == pytest.approx(summary["mean_tpot_ms"], rel=0.08)
    assert 1e3 * state.value(E2EL)[0] == pytest.approx(summary["mean_e2el_ms"], rel=0.15)


def test_engines_apart_are_near_their_simulation():
    pools = {role: {"role": role} for role in ("prefill", "decode")}
    asked = scenario(20.0, pools=pools)
    deployment, load = Deployment.of(scenario(20.0)), load_of(asked)
    prices, rate = StepPrices.of(deployment, load), np.array([20.0])
    state = SteadyApart(station([deployment], prices, load, "prefill").steady(rate),
                  station([deployment], prices, load, "decode").steady(rate), 0.4e-3, 0.5e-6)
    summary = play(asked).summary
    assert 1e3 * state.value(TTFT)[0] == pytest.approx(summary["mean_ttft_ms"], rel=0.25)
    assert 1e3 * state.value(TPOT)[0] == pytest.approx(summary["mean_tpot_ms"], rel=0.08)


def test_an_engine_is_full_where_it_gets_more_than_it_serves(engine):
    deployment, prices, load = engine
    state = station([deployment], prices, load).steady(np.array([1.0, 1e4]))
    assert state.full.tolist() == [False, True]
    assert np.isinf(state.value(TTFT)[1]) and np.isfinite(state.value(TTFT)[0])


def test_more_load_never_makes_an_engine_faster(engine):
    deployment, prices, load = engine
    rates = np.linspace(1.0, 90.0, 12)
    state = station([deployment], prices, load).steady(rates)
    assert np.all(np.diff(state.seconds) >= -1e-9) and np.all(np.diff(state.decodes) > 0)
    assert np.all(np.diff(state.watts) > -0.01 * state.watts[1:])  # a larger graph takes longer at little more power
    assert np.all(np.diff(state.value(Target.parse("tpot:p99:1s"))) > -1e-6)


def test_the_sequences_that_decode_are_those_of_littles_law(engine):
    deployment, prices, load = engine
    state = station([deployment], prices, load).steady(np.array([10.0, 50.0]))
    assert state.decodes == pytest.approx(np.array([10.0, 50.0]) * load.steps * state.seconds, rel=1e-3)


def test_requests_that_take_turns_wait_for_each_other_less(engine):
    deployment, prices, load = engine
    rate, prefills = np.array([50.0]), station([deployment], prices, load, "prefill")
    assert prefills.steady(rate, np.array([4])).value(TTFT)[0] < prefills.steady(rate).value(TTFT)[0]


@given(st.floats(0.001, 2.0), st.lists(st.integers(1, 5000), min_size=1, max_size=20), st.integers(2048, 16384))
def test_the_prompts_of_steps_are_as_many_as_come(expected, lengths, most):
    new = np.array(lengths, float)
    prompts = StepPrompts.of(np.array([expected]), new, np.array([float(most)]))
    assert prompts.shares.sum() == pytest.approx(1.0)
    assert prompts.tokens.max() <= most
    if expected * new.mean() < most / 8 and new.max() < most / 8:  # so that next to nothing is cut off
        assert prompts.mean(prompts.tokens)[0] == pytest.approx(expected * new.mean(), rel=0.02)


def test_the_highest_rate_keeps_the_targets_and_a_little_more_does_not(engine):
    deployment, prices, load = engine
    targets = (Target.parse("ttft:p99:200ms"), Target.parse("tpot:mean:10ms"))
    rate = highest_rate(load, targets, deployment)
    state = station([deployment], prices, load).rows(np.zeros(2, int)).steady(np.array([rate, 1.01 * rate]))
    assert kept(state, targets).tolist() == [True, False]
    assert highest_rate(load, (Target.parse("tpot:mean:1us"),), deployment) == 0.0
