"""Runs with pools: phases of split requests, numbers by pool, and what a run without pools does not have."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from ksim.flow.events import (
    Failed,
    Released,
    Transferred,
)
from ksim.flow.log import Log
from ksim.results.attribution import HANDOVER
from ksim.results.energy import Energy
from ksim.results.history import History
from ksim.results.numbers import CostRates, LatencyTargets
from ksim.results.series import moving, running, waiting
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import requests_of, serve, simulate
from ksim.views.result import Result
from ksim.workload.rows import Ledger
from tests.kv.transfer.fleets import CONNECTORS, requests, run, scenario
from tests.laws.tiny import TINY, uniform
from tests.properties import examples

from . import fabricate, fleet
from .partition import assert_a_partition, parts
from .strategies import fleet_scenarios, fleets


def handed_over(columns: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(columns[name][0]) for name in HANDOVER}


def test_the_phases_between_two_engines_by_hand():
    result = Result(fleet.by_hand())
    first, after = parts(result)
    assert_a_partition(result)
    assert handed_over(first) == {"hop": 0.5, "room": 0.5, "transfer": 1.75, "contention": 0.5, "next_step": 0.5}
    assert (first["intake"], first["queue"]) == (0.5, 1.25)
    summary = result.summary
    assert [each["mean_queue_ms"] for each in (summary, *summary["pools"].values())] == [1250.0, 3250.0, 1250.0]
    # The host takes in and delivers the prefill engine's answer, and then the decode engine's first token.
    assert (first["update"], first["delivery"]) == (0.25 + 0.25, 0.75 + 0.25)
    assert not any(handed_over(after).values())


def test_a_decode_engine_that_had_the_request_at_once_does_not_wait_for_the_answer():
    """Nothing is between the end of the prefill at 3 and the wait for room until 5."""
    first, _ = parts(Result(fleet.by_hand(queued=0.75)))
    assert handed_over(first) == {"hop": 0.0, "room": 2.0, "transfer": 1.75, "contention": 0.5, "next_step": 0.5}
    assert (first["update"], first["delivery"]) == (0.25, 0.25)


def test_a_token_that_is_handed_over_ends_the_first_part():
    result = Result(fleet.by_hand(handed=True))
    first, after = parts(result)
    assert_a_partition(result)
    assert result.requests["ttft_s"].to_pylist() == [3.5] and result.requests["output_tokens"].to_pylist() == [3]
    assert not any(handed_over(first).values())
    assert handed_over(after) == {"hop": 0.5, "room": 0.5, "transfer": 1.75, "contention": 0.5, "next_step": 0.5}


@given(fleet_scenarios())
@examples(20)
def test_phases_and_joules_add_up_in_any_run_of_a_fleet(scenario):
    result = simulate(scenario)
    assert_a_partition(result)
    energy = Energy(result.shares)
    if result.history.requests.completed.all():
        assert energy.unattributed == pytest.approx(0.0, abs=1e-9 * energy.joules.sum())
    summary = result.summary
    assert sum(pool["total_output_tokens"] for pool in summary["pools"].values()) == summary["total_output_tokens"]


DRAFTS = {"method": "ngram", "num_speculative_tokens": 2, "acceptance": {"name": "geometric", "rate": 0.7}}


@pytest.mark.parametrize("asked", ["drafts", "logprobs"])
@pytest.mark.parametrize("connector", CONNECTORS)
def test_phases_add_up_where_decode_engines_draft_or_compute_prompts_by_themselves(connector, asked, tmp_path):
    """A token that is handed over comes with the next ones; with logprobs, a decode engine may be the first to begin.
    """
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    load = requests(8, 100, uniform(20, 90), uniform(1, 9), **({"prompt_logprobs": 2} if asked == "logprobs" else {}))
    result = run(scenario(str(tmp_path), connector, workload=load,
                          **({"speculative_config": DRAFTS} if asked == "drafts" else {})))
    assert_a_partition(result)
    found = result.history.requests
    times = [np.unique(found.steps.time[found.token_steps[begin:end]]) for begin, end in pairwise(found.first.tolist())]
    assert found.gap_counts.tolist() == [len(each) - 1 for each in times]
    assert found.gaps == pytest.approx(np.concatenate([np.diff(each) for each in times]))


@pytest.mark.parametrize("connector, engine", [("sglang", "sglang-0.5.8"), ("tensorrt_llm", "trtllm-1.2")])
def test_a_decode_engine_takes_kv_for_one_token_whatever_is_asked_of_the_prompt(connector, engine, tmp_path):
    """Otherwise a prefill engine without leases would hold the blocks for ever, as where it does not wait for room."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    load = requests(8, 400, uniform(20, 90), uniform(1, 1), prompt_logprobs=2)
    table = scenario(str(tmp_path), connector, workload=load, num_gpu_blocks_override=160) | {"engine": engine}
    if connector == "sglang":
        own = {"context_length": 256, "chunked_prefill_size": 64, "max_running_requests": 8, "max_total_tokens": 159,
               "num_reserved_decode_tokens": 8}
        table["serve"] = {"kv_transfer_config": table["serve"]["kv_transfer_config"], "sglang": own}
    log, fleet = Log(), Fleet.of(Scenario.of(table))
    cluster = serve(fleet, requests_of(fleet, Ledger()), log, lambda: None)
    assert [engine.scheduler.cache.pool.used for engine in cluster.engines] == [0] * len(cluster.engines)
    assert len(log.columns(Transferred)["time"]) == 8


@given(fleets())
@examples(60)
def test_phases_add_up_in_any_fleet(log):
    result = Result(log)
    assert_a_partition(result)
    split = result.history.requests.prefill_engine[result.history.requests.completed] >= 0
    for columns in parts(result):
        assert all((columns[name][~split] == 0.0).all() for name in HANDOVER)


@pytest.mark.parametrize("style", [fleet.Style(), fleet.Style(concurrent=True, by_chunk=True),
                                   fleet.Style(hands_over=True), fleet.Style(hands_over=True, late=True)])
@pytest.mark.parametrize("decode_first", [False, True])
def test_every_joule_of_a_fleet_is_somebodys_where_no_request_fails(style, decode_first):
    result = Result(fleet.log(count=10, rate=60, style=style, decode_first=decode_first, preempt_every=6))
    energy = Energy(result.shares)
    assert result.history.requests.completed.all()
    assert energy.unattributed == pytest.approx(0.0, abs=1e-9 * energy.joules.sum())


@given(fleets())
@examples(30)
def test_pools_add_up_to_the_run(log):
    summary = Result(log, limits=LatencyTargets(ttft=0.1), rates=CostRates(gpu_dollars=1e-3)).summary
    pools = list(summary["pools"].values())
    for key in ("gpus", "steps", "total_output_tokens", "total_input_tokens", "energy_joules", "preemptions",
                "gpu_dollars"):
        assert sum(pool[key] for pool in pools) == pytest.approx(summary[key])
    assert sum(pool["bytes_sent"] for pool in pools) == sum(pool["bytes_received"] for pool in pools)
    assert summary["bytes_transferred"] == sum(pool["bytes_sent"] for pool in pools)


def test_pools_may_have_their_own_rates():
    result = Result(fleet.log(count=20), rates=CostRates(gpu_dollars=1.0),
                    pool_rates={"decode": CostRates(gpu_dollars=3.0)})
    pools = result.summary["pools"]
    spent = {name: pool["gpu_dollars"] / (pool["gpus"] * result.summary["duration"]) for name, pool in pools.items()}
    assert spent == pytest.approx({"prefill": 1.0, "decode": 3.0})
    assert pools["prefill"]["dollars_per_million_input_tokens"] == pytest.approx(
        1e6 * pools["prefill"]["gpu_dollars"] / pools["prefill"]["total_input_tokens"])


def test_a_failed_request_says_why_and_counts_as_failed():
    log = fleet.log(count=12)
    (failure,) = log.of(Failed)
    result = Result(log)
    row = result.requests.to_pylist()[failure.request_id]
    assert (row["status"], row["reason"], row["ttft_s"], row["output_tokens"]) == ("failed", "the load failed", None, 0)
    assert (row["engine"], row["prefill_engine"], row["transfer_bytes"]) == (failure.engine, 0, None)
    assert result.summary["failed"] == 1 and result.summary["completed"] == 11
    assert result.summary["pools"]["decode"]["num_failed"] == 1


def test_a_fleet_that_refuses_every_request_has_results():
    pools = {"p": {"role": "prefill"}, "d": {"role": "decode"}}
    fixed = {"kind": "fixed", "value": 100}
    load = {"count": 2, "arrivals": {"process": "burst"}, "prompt": fixed, "output": fixed}
    result = simulate(Scenario.of({"model": "llama-3.2-1b", "gpu": "h100", "oracle": "roofline", "pools": pools,
                                   "serve": {"max_model_len": 40}, "workload": {"synthetic": load}}))
    assert result.summary["failed"] == 2 and result.summary["generated_tokens"] == 0 and result.report()


def test_a_token_that_is_thrown_away_is_no_output_token():
    result = Result(fleet.log(count=10))
    assert result.summary["generated_tokens"] == sum(request.output for request in result.history.requests.requests)
    prefills = result.history.steps.engine < 2
    assert result.history.steps.samples[prefills].sum() > 0
    assert result.summary["pools"]["prefill"]["total_output_tokens"] == 0


@given(fleets())
@examples(30)
def test_every_request_in_flight_waits_runs_or_moves(log):
    """After the last event nobody does, and before it never fewer than none."""
    history = History(log)
    found = [series(history) for series in (waiting, running, moving)]
    times = np.unique(np.concatenate([series.times for series in found]))
    levels = np.stack([series.at(times) for series in found])
    assert (levels >= -1e-9).all()
    if history.requests.ended.all():
        assert not levels[:, -1:].any()


def test_a_run_without_pools_has_nothing_of_them():
    result = Result(fabricate.log(count=10))
    assert "pools" not in result.summary and "bytes_transferred" not in result.summary
    assert "prefill_engine" not in result.requests.column_names
    assert not {name.partition(".")[2] for name in result.attribution.column_names} & set(HANDOVER)


def test_blocks_that_are_held_until_their_lease_ends_make_a_run_no_longer():
    log = fleet.log(count=20)
    assert max(event.time for event in log.of(Released)) > 20 + Result(log).summary["duration"]
    assert Result(log).summary["num_kv_expired_reqs"] == 2
