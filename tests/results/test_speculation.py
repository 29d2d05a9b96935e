"""What results make of steps that give a request several tokens."""

import json
from pathlib import Path

import numpy as np
import pytest

from ksim import Scenario, simulate
from ksim.simulation.simulate import stream
from ksim.views.result import Result

SCENARIO = {
    "model": "llama-3.2-1b", "gpu": "h100", "oracle": "roofline",
    "serve": {"max_model_len": 2048, "async_scheduling": False, "speculative_config": {
        "method": "ngram", "num_speculative_tokens": 3, "match_rate": 0.8,
        "acceptance": {"name": "geometric", "rate": 0.6}}},
    "workload": {"synthetic": {
        "arrivals": {"process": "poisson", "rate": 200}, "count": 25, "max_tokens": 2000,
        "prompt": {"kind": "uniform", "low": 2, "high": 400}, "output": {"kind": "exponential", "mean": 25}}}}


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(Scenario.of(SCENARIO))


def test_all_joules_of_steps_belong_to_requests(result):
    """None is wasted: without asynchronous scheduling, no step verifies anything for a request that has ended."""
    summary = result.summary
    assert summary["unattributed_energy_joules"] == pytest.approx(0.0, abs=1e-9 * summary["energy_joules"])
    assert 25 * summary["mean_energy_per_request_joules"] == pytest.approx(
        summary["prefill_energy_joules"] + summary["decode_energy_joules"])


def test_the_phases_of_a_request_add_up_to_its_latency(result):
    phases = result.attribution
    total = sum(phases[name].to_numpy() for name in phases.column_names if name != "id")
    assert total == pytest.approx(result.requests["e2e_s"].to_numpy())


def test_steps_tell_drafts_from_tokens_of_prompts(result):
    steps = {name: column.to_numpy() for name, column in zip(
        result.steps.column_names, result.steps.columns, strict=True)}
    assert steps["prefill_tokens"].sum() == result.requests["prompt_tokens"].to_numpy().sum()
    assert (steps["accepted"] <= steps["drafts"]).all() and (steps["drafts"] % 3 == 0).all()
    outputs = result.requests["output_tokens"].to_numpy().sum()
    assert outputs <= steps["samples"].sum() + steps["accepted"].sum() <= outputs + 3 * 25
    lengths = result.requests["acceptance_length"].to_numpy()
    assert (lengths[~np.isnan(lengths)] >= 1).all() and (lengths[~np.isnan(lengths)] <= 4).all()


def test_streamed_rows_are_those_of_whole_runs(result, tmp_path: Path):
    stream(Scenario.of(SCENARIO), tmp_path / "streamed")
    summary = json.loads((tmp_path / "streamed" / "summary.json").read_text(encoding="utf-8"))
    for name, value in result.summary.items():
        if name.startswith("spec_decode") or name in ("total_output_tokens", "max_output_tokens_per_s"):
            assert summary[name] == value, name
    assert summary["mean_itl_ms"] == pytest.approx(result.summary["mean_itl_ms"])
