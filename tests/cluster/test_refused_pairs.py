"""Requests that a router of either side refuses, in a fleet that prefills and decodes apart."""

import json

import pytest

from ksim import Scenario, simulate
from tests.laws.tiny import TINY, uniform

STRICT = {"name": "mooncake", "ttft_slo": "1 us"}
ENDLESS = {"name": "mooncake", "tbt_slo": "1 us"}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path


def run(model, **sides):
    return simulate(Scenario.of({
        "model": str(model), "gpu": "h200", "oracle": "roofline", "signals": {"delay": "1 ms"},
        "pools": {"prefill": {"role": "prefill"}, "decode": {"role": "decode", "replicas": 2}},
        "pair_router": {"name": "each_side", **sides}, "serve": {"max_model_len": 1000, "num_gpu_blocks_override": 200},
        "workload": {"synthetic": {"count": 5, "arrivals": {"process": "poisson", "rate": 300.0},
                                   "prompt": uniform(100, 200), "output": uniform(2, 5)}}}))


@pytest.mark.parametrize(("side", "router", "reason"), [
    ("prefill", STRICT, "estimated TTFT"), ("decode", ENDLESS, "estimated TBT"),
    ("decode", {"name": "session_affinity", "fallback": ENDLESS}, "estimated TBT"),
    ("prefill", {"name": "llm_d", "filters": ["decode-filter"], "scorers": {"queue-scorer": 1}}, "leave no engine")])
def test_what_either_side_refuses_is_refused_with_its_reason(model, side, router, reason):
    result = run(model, **{side: router})
    assert result.summary["rejected"] == 5
    assert all(reason in row for row in result.requests["reason"].to_pylist())


def test_routers_of_both_sides_hear_of_answers(model):
    """Also beside one that wraps a router which does not listen."""
    assert run(model, prefill="mooncake", decode="session_affinity").summary["completed"] == 5
