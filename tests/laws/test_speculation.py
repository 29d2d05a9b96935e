"""Speculative decoding: what holds for runs whatever is drafted, and how many steps they take."""

import json
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim import Scenario, simulate
from ksim.flow.events import Finished
from ksim.scenario.defaults import Deployment
from ksim.simulation.simulate import play
from ksim.views.result import Result
from tests.laws.happenings import facts, times
from tests.laws.tiny import TINY, uniform
from tests.properties import examples


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(TINY))
    (path.parent / "head.json").write_text(json.dumps({**TINY, "num_hidden_layers": 1}))
    return path


methods = st.sampled_from(["ngram", "eagle", "draft_model"])
acceptances = st.sampled_from([0.0, 0.3, 0.8, 1.0])
workloads = st.fixed_dictionaries({"synthetic": st.fixed_dictionaries({
    "arrivals": st.just({"process": "burst"}) | st.fixed_dictionaries(
        {"process": st.just("poisson"), "rate": st.sampled_from([20, 500, 5000])}),
    "prompt": st.sampled_from([uniform(1, 150), uniform(1, 5)]),
    "output": st.sampled_from([uniform(1, 10), uniform(20, 90)]),
    "count": st.integers(1, 20), "max_tokens": st.just(250)},
    optional={"sessions": st.just({"turns": uniform(1, 3), "think": uniform("0 s", "1 s")}),
              "prefixes": st.just({"groups": 2, "tokens": 40})})})
serves = st.fixed_dictionaries({
    "async_scheduling": st.booleans(), "enable_prefix_caching": st.booleans(),
    "max_num_seqs": st.sampled_from([2, 8, 32]), "max_num_batched_tokens": st.sampled_from([32, 256]),
    "num_gpu_blocks_override": st.sampled_from([20, 40, 500]), "max_model_len": st.just(256),
    "data_parallel_size": st.sampled_from([1, 1, 2]), "scheduling_policy": st.sampled_from(["fcfs", "priority"])})


def speculative(model: Path, method: str, k: int, rate: float, **more: Any) -> dict[str, Any]:
    """A `speculative_config` that accepts each token with chance *rate*."""
    drafters = {"eagle": {"model": str(model.parent / "head.json")}, "draft_model": {"model": str(model)}}
    return {"method": method, "num_speculative_tokens": k, **drafters.get(method, {}),
            "acceptance": {"name": "geometric", "rate": rate}, **more}


def scenario_of(model: Path, workload: dict[str, Any], serve: dict[str, Any], seed: int = 0) -> Scenario:
    return Scenario.of({"model": str(model), "gpu": "h200", "oracle": "roofline", "seed": seed, "workload": workload,
                        "serve": serve, "nodes": 1})


def both(scenario: Scenario) -> tuple[Result, Result]:
    """A run that goes ahead of the clock, and one that takes every step."""
    site = Deployment.of(scenario)
    ahead, stepped = (play(evolve(site, skips=skips), scenario.workload.requests(scenario.seed))
                      for skips in (True, False))
    return ahead, stepped


@given(method=methods, k=st.integers(1, 5), rate=acceptances, match=st.sampled_from([1.0, 0.5]), serve=serves,
       workload=workloads, seed=st.integers(0, 1000))
@examples(36)
def test_tokens_are_conserved_and_going_ahead_changes_nothing(model, method, k, rate, match, serve, workload, seed):
    config = speculative(model, method, k, rate, **({"match_rate": match} if method == "ngram" else {}))
    ahead, stepped = both(scenario_of(model, workload, {**serve, "speculative_config": config}, seed))
    assert facts(ahead.log) == facts(stepped.log)
    assert times(ahead.log) == pytest.approx(times(stepped.log), rel=1e-9)
    conserved(ahead)


def conserved(result: Result) -> None:
    """Each request gets its output; each verification gives its accepted drafts and one token more, unless the request
    ends before."""
    requests, steps = result.history.requests, result.history.steps
    asked = np.array([request.output for request in requests.requests])
    assert (requests.output[requests.completed] == asked[requests.completed]).all()
    accepted = int(steps.verifications[:, 1:].sum())
    assert requests.output.sum() <= steps.samples.sum() + accepted
    assert (steps.drafts >= steps.verifications[:, 1:].sum(axis=1)).all()
    assert result.summary["spec_decode_num_accepted_tokens"] == accepted
    assert sum(event.accepted for event in result.log.of(Finished)) <= accepted


def one(prompt: int, output: int) -> dict[str, Any]:
    return {"synthetic": {"arrivals": {"process": "burst"}, "count": 1, "prompt": {"kind": "fixed", "value": prompt},
                          "output": {"kind": "fixed", "value": output}}}


@given(method=methods, k=st.integers(1, 6), prompt=st.integers(1, 60), output=st.integers(1, 60), ahead=st.booleans())
@examples(40)
def test_with_acceptance_1_a_request_needs_a_verification_for_each_k_and_1_tokens_after_the_first(
        model, method, k, prompt, output, ahead):
    """The first token comes of the prompt.  An engine that schedules ahead may make one more, of which nothing comes.
    """
    serve = {"max_model_len": 256, "async_scheduling": ahead, "speculative_config": speculative(model, method, k, 1.0)}
    result = simulate(scenario_of(model, one(prompt, output), serve))
    outputs = result.history.requests.runs.outputs.sum()
    assert outputs == 1 + ceil((output - 1) / (k + 1))
    assert outputs <= result.summary["steps"] <= outputs + ahead


@given(method=methods, k=st.integers(1, 6), prompt=st.integers(1, 60), output=st.integers(1, 60), ahead=st.booleans())
@examples(40)
def test_with_acceptance_0_steps_are_k_and_1_tokens_wide_and_yield_one(model, method, k, prompt, output, ahead):
    serve: dict[str, Any] = {"max_model_len": 256, "async_scheduling": ahead}
    plain = simulate(scenario_of(model, one(prompt, output), serve))
    config = speculative(model, method, k, 0.0)
    drafted = simulate(scenario_of(model, one(prompt, output), {**serve, "speculative_config": config}))
    widths = drafted.history.steps.tokens
    assert len(widths) == len(plain.history.steps.tokens)
    assert widths[0] == prompt and (widths[1:] == k + 1).all()
    assert drafted.history.steps.samples.tolist() == plain.history.steps.samples.tolist()
    assert drafted.summary["spec_decode_acceptance_length"] in (None, 1.0)


@given(seed=st.integers(0, 100), k=st.integers(1, 4), ahead=st.booleans())
@examples(12)
def test_what_is_accepted_does_not_depend_on_what_is_served_beside(model, seed, k, ahead):
    def lengths(slots: int) -> dict[int, tuple[int, int]]:
        workload = {"synthetic": {"arrivals": {"process": "burst"}, "prompt": uniform(2, 60), "output": uniform(5, 40),
                                  "count": 12, "max_tokens": 120}}
        serve = {"max_model_len": 256, "max_num_seqs": slots, "async_scheduling": ahead,
                 "enable_prefix_caching": False, "speculative_config": speculative(model, "eagle", k, 0.6)}
        log = simulate(scenario_of(model, workload, serve, seed)).log
        return {event.request_id: (event.verified, event.accepted) for event in log.of(Finished)}

    assert lengths(1) == lengths(12)


def test_itl_is_between_outputs_and_tpot_between_tokens(model):
    serve = {"max_model_len": 256, "speculative_config": speculative(model, "eagle", 3, 1.0)}
    result = simulate(scenario_of(model, one(20, 41), serve))
    requests = result.history.requests
    assert requests.gap_counts.tolist() == [10] and len(requests.gaps) == 10
    assert (requests.gaps > 0).all()
    assert requests.tpot[0] == pytest.approx(requests.gaps.sum() / 40)
    assert result.requests["acceptance_length"].to_pylist() == [pytest.approx(4.0)]
