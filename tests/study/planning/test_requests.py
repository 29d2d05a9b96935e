"""What prefix caches of a size hold of the prompts of a load, and the rounds of estimates that follow from it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ksim
from ksim.scenario.scenario import Scenario
from ksim.study.planning.ask import PlanStudy
from ksim.study.planning.requests import SampledRequests

SYNTHETIC = {"count": 300, "arrivals": {"process": "poisson", "rate": 4.0},
             "prompt": {"kind": "lognormal", "median": 200, "sigma": 0.5},
             "output": {"kind": "fixed", "value": 20}, "max_tokens": 4000}
PREFIXES = {"prefixes": {"groups": 6, "tokens": 640}}
SESSIONS = {"sessions": {"turns": {"kind": "uniform", "low": 2, "high": 6}, "think": {"kind": "fixed", "value": "2 s"}}}
SERVE = {"max_model_len": 4096}
FEW = {"engine": ["vllm-0.33"], "serve.tensor_parallel_size": [1], "serve.max_num_batched_tokens": [8192],
       "serve.max_num_seqs": [64], "serve.quantization": ["auto"], "serve.kv_cache_dtype": ["auto"]}


def scenario(**more):
    return Scenario.of({"model": "qwen3-0.6b", "gpu": "h100", "serve": SERVE,
                        "workload": {"synthetic": {**SYNTHETIC, **more}}})


def sampled(rate=4.0, **more):
    asked = PlanStudy.of(scenario(**more), rate, ["ttft:p99:1s"], (), (), (), requests=300, replications=3, seed=None)
    return asked.requests


@pytest.fixture(scope="module")
def sharing():
    return sampled(**PREFIXES)


@given(st.floats(100, 1e6), st.floats(1, 4), st.integers(1, 8), st.booleans())
def test_a_larger_cache_never_holds_less(sharing, tokens, ratio, caches, together):
    small, large = (sharing.load(size, caches, together).cached.sum() for size in (tokens, ratio * tokens))
    assert small <= large <= sharing.whole.cached.sum()


def test_a_router_that_looks_at_prefixes_makes_one_cache_of_several(sharing):
    apart, together = (sharing.load(3000.0, 4, one).cached.sum() for one in (False, True))
    assert together > 1.2 * apart
    assert sharing.load(1e6, 1, False).cached == pytest.approx(sharing.whole.cached)


def test_caches_too_small_for_any_prefix_hold_nothing(sharing):
    assert sharing.load(32.0, 2, False).cached.sum() < 0.01 * sharing.whole.cached.sum(), "blocks of the last prompt"


def test_requests_without_prefixes_have_one_load():
    plain = sampled()
    assert not plain.shared and plain.load(100.0, 4, False) is plain.whole and plain.turns == 1.0


def test_a_rate_of_sessions_counts_each_turn():
    made = sampled(**SESSIONS)
    assert made.turns == pytest.approx(4.0, rel=0.15), "2 to 6 turns"
    mixed = [request.session for request in made.requests[:40]]
    changes = sum(one != other for one, other in pairwise(mixed))
    assert changes > len({*mixed}), "turns of sessions come between those of others"


def test_the_hits_are_near_those_of_a_simulation():
    """Two caches with room for a part of the prefixes, in turn: estimated before a run, and counted in it."""
    blocks = {"serve.num_gpu_blocks_override": 250, "pools.a.role": "both", "pools.a.replicas": 2}
    asked = scenario(prefixes={"groups": 12, "tokens": 640}).with_values({"workload.synthetic.count": 500, **blocks})
    run = ksim.simulate(asked)
    load = SampledRequests.of(asked, 4.0, PlanStudy.of(
        scenario(), 4.0, ["ttft:p99:1s"], (), (), (), requests=500, replications=3, seed=None).criteria
        ).load(249 * 16.0, 2, False)
    estimated = load.cached.sum() / load.prompts.sum()
    assert 0.1 < estimated < 0.7
    assert estimated == pytest.approx(run.summary["prefix_cache_hit_rate"], abs=0.06)


def test_a_plan_tries_a_router_that_looks_at_prefixes():
    shared = scenario(prefixes={"groups": 40, "tokens": 2000})
    found = ksim.plan(shared, 600.0, ["ttft:p99:1s"], finalists=2, requests=60, over=FEW)
    named = {option.settings.get("router") for option in found.options if "pools" not in option.settings}
    assert named == {None, "prefix_aware"}
    assert all(option.replicas > 1 for option in found.options if option.settings.get("router"))
    assert found.options[0].costs["gpus"] <= min(
        option.costs["gpus"] for option in found.options if "router" not in option.settings)
    fixed = shared.with_values({"router": "least_outstanding"})
    found = ksim.plan(fixed, 600.0, ["ttft:p99:1s"], finalists=1, requests=60, over=FEW)
    assert not any("router" in option.settings for option in found.options), "the scenario's own stays"


def test_engines_that_prefill_have_no_answers_of_earlier_turns():
    made = sampled(**SESSIONS)
    load = made.whole
    assert load.prefilled.cached.sum() < load.cached.sum()
    later = load.asked < np.inf
    assert 0.5 < later.mean() < 0.9 and np.all(load.prefilled.cached[later] <= load.asked[later])
    plain = sampled(**PREFIXES).whole
    assert plain.prefilled is plain


def test_hits_never_exceed_the_prompt(sharing):
    assert np.all(sharing.whole.cached < sharing.whole.prompts)
