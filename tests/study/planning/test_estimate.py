"""Estimates of a steady state beside simulations, and the laws that they keep."""

from itertools import islice

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.targets import Target
from ksim.study.experiment import play
from ksim.study.planning.estimate import SteadyApart, StepPrompts, station
from ksim.study.planning.options import highest_rate
from ksim.study.planning.ranking import kept
from ksim.study.planning.step_prices import LoadSample, StepPrices
from ksim.study.speculation import accepted_length, accepted_spread

TTFT, TPOT, E2EL = (Target.parse(f"{name}:mean:1s") for name in ("ttft", "tpot", "e2el"))


def scenario(rate, **changes):
    table = {"model": "llama-3.2-1b", "gpu": "h100", "serve": {"max_model_len": 4096},
             "workload": {"synthetic": {"count": 300, "arrivals": {"process": "poisson", "rate": rate},
                                        "prompt": {"kind": "lognormal", "median": 600, "sigma": 0.6},
                                        "output": {"kind": "lognormal", "median": 80, "sigma": 0.6},
                                        "max_tokens": 4000}}}
    return Scenario.of({**table, **changes})


def load_of(asked):
    drawn = [*islice(asked.workload.requests(asked.seed), 300)]
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


def test_verified_drafts_are_near_their_simulation():
    """With 2.18 tokens a step on the mean, as of `DRAFTERS`."""
    drafts = {"method": "ngram", "num_speculative_tokens": 2, "acceptance": {
        "name": "by_position", "rates_by_position": [0.75, 0.43]}}
    asked = scenario(40.0, serve={"max_model_len": 4096, "speculative_config": drafts})
    deployment, load = Deployment.of(asked), load_of(asked)
    config = deployment.serve.speculative_config
    load = evolve(load, accepted=accepted_length(config), uneven=accepted_spread(config))
    assert load.accepted == pytest.approx(2.18)
    assert load.uneven == pytest.approx((0.75 + 3 * 0.43 - 1.18**2)**0.5 / 2.18)
    state = station([deployment], StepPrices.of(deployment, load), load).steady(np.array([40.0]))
    summary = play(asked).summary
    assert 1e3 * state.value(TTFT)[0] == pytest.approx(summary["mean_ttft_ms"], rel=0.15)
    assert 1e3 * state.value(TPOT)[0] == pytest.approx(summary["mean_tpot_ms"], rel=0.08)
    assert 1e3 * state.value(Target.parse("tpot:p99:1s"))[0] == pytest.approx(summary["p99_tpot_ms"], rel=0.2)


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
    nothing = evolve(station([deployment], prices, load), most=np.zeros(1))
    assert nothing.steady(np.array([1.0])).full.tolist() == [True], "it has no room for a single sequence"


def test_more_load_never_makes_an_engine_faster(engine):
    deployment, prices, load = engine
    rates = np.linspace(1.0, 90.0, 12)
    state = station([deployment], prices, load).steady(rates)
    assert np.all(np.diff(state.seconds) >= -1e-9) and np.all(np.diff(state.decodes) > 0)
    assert np.all(np.diff(state.watts) > -0.02 * state.watts[1:])  # a GPU waits for its host
    assert np.all(np.diff(state.value(Target.parse("tpot:p99:1s"))) > -1e-6)


def test_the_sequences_that_decode_are_those_of_littles_law(engine):
    deployment, prices, load = engine
    state = station([deployment], prices, load).steady(np.array([10.0, 50.0]))
    assert state.decodes == pytest.approx(np.array([10.0, 50.0]) * load.steps * state.seconds, rel=1e-3)


def test_requests_that_take_turns_wait_for_each_other_less(engine):
    deployment, prices, load = engine
    rate, prefills = np.array([50.0]), station([deployment], prices, load, "prefill")
    assert prefills.steady(rate, np.array([4])).value(TTFT)[0] < prefills.steady(rate).value(TTFT)[0]


def test_the_highest_rate_keeps_the_targets_and_a_little_more_does_not(engine):
    deployment, prices, load = engine
    targets = (Target.parse("ttft:p99:200ms"), Target.parse("tpot:mean:10ms"))
    rate = highest_rate(load, targets, deployment)
    state = station([deployment], prices, load).rows(np.zeros(2, int)).steady(np.array([rate, 1.01 * rate]))
    assert kept(state, targets).tolist() == [True, False]
    assert highest_rate(load, (Target.parse("tpot:mean:1us"),), deployment) == 0.0


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=30), st.floats(0.01, 3.0), st.integers(256, 8192))
def test_no_prompt_token_is_lost_however_little_fits_into_a_step(lengths, expected, most):
    """What a step has no room for fills others, next to engines with room for more; all steps are full at most."""
    new = np.array(lengths, dtype=np.float64)
    steps = StepPrompts.of(np.array([expected, expected]), new, np.array([float(most), 8192.0]))
    coming = np.minimum(expected * new.mean(), [most, 8192.0])
    assert steps.mean(steps.tokens) == pytest.approx(coming, rel=0.02, abs=1.0)
    assert np.allclose(steps.shares.sum(axis=1), 1.0) and np.all(steps.shares >= 0)
    assert np.all(steps.tokens.max(axis=1) <= [most, 8192.0])


def test_decodes_take_as_long_as_the_graph_that_holds_them(engine):
    _, prices, _ = engine
    seconds = prices.at(np.array([3.0, 4.0, 5.0, 8.0, 3.5]), np.zeros(5))[0]
    assert seconds[0] == seconds[1] == seconds[4] < seconds[2] == seconds[3]
    largest = float(prices.largest)
    inside, outside = (prices.at(np.array([[16.0]]), np.array([[largest - 16.0 + more]]))[1][0, 0] for more in (0, 1))
    assert inside < outside, "what no graph holds is launched kernel by kernel"


def test_a_power_limit_makes_steps_longer(engine):
    _, prices, load = engine
    capped = scenario(1.0, power={"cap": "350 W"})
    limited = StepPrices.of(Deployment.of(capped), load)
    assert np.all(limited.beside[0, 0] >= prices.beside[0, 0] - 1e-12)
    assert limited.beside[0, 0, -1, 0] > 1.1 * prices.beside[0, 0, -1, 0]


def test_an_engine_is_as_crowded_as_its_product_form_says(engine):
    """Steps whose seconds are linear in their sequences have the mean of the fixed point, whatever spreads."""
    deployment, prices, load = engine
    engines = station([deployment], prices, load)
    states = [engines.steady(np.array([40.0]), np.array([turns])) for turns in (1.0, 4.0, np.inf)]
    crowds = [float(state.decodes[0]) for state in states]
    assert crowds == pytest.approx([crowds[0]] * 3, rel=0.1) and len(set(crowds)) == 3
