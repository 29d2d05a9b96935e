"""Random scenarios over all keys: each is refused with a message, or runs as the laws of runs have it.

Not part of the suite: `make explore` tries new ones each time.
"""

import json
import tomllib
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import HealthCheck, given, note

from ksim import KsimError, Result, Scenario, simulate
from ksim.flow.copied import Copied
from ksim.results.metrics import LATENCIES, PERCENTILES
from ksim.simulation.fleet import Fleet
from tests.explore.fleets import fleets, ordinary
from tests.explore.strategies import scenarios
from tests.properties import examples

pytestmark = pytest.mark.explore
SHARES = ("mfu", "mbu", "gpu_busy_share", "kv_cache_usage_peak", "kv_cache_usage_mean", "prefix_cache_hit_rate",
          "throttled_share", "slo_attainment", "extrapolated_share")


@given(table=scenarios())
@examples(100, suppress_health_check=list(HealthCheck))
def test_a_scenario_is_refused_or_its_run_keeps_the_laws(table):
    refused_or_lawful(table)


@given(table=fleets())
@examples(150, suppress_health_check=list(HealthCheck))
def test_a_fleet_is_refused_or_its_run_keeps_the_laws(table):
    refused_or_lawful(table)


@given(table=scenarios().map(ordinary))
@examples(100, suppress_health_check=list(HealthCheck))
def test_one_pool_of_role_both_is_the_scenario(table):
    note(tomli_w.dumps(table))
    try:
        alone = simulate(Scenario.of(table))
    except KsimError:
        return
    pooled = simulate(Scenario.of(table | {"pools": {"all": {"role": "both"}}}))
    columns = alone.requests.column_names
    assert pooled.requests.select(columns).equals(alone.requests)
    assert {key: pooled.summary[key] for key in alone.summary} == alone.summary


def refused_or_lawful(table: dict[str, Any]) -> None:
    note(tomli_w.dumps(table))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            scenario = Scenario.of(table)
            result = simulate(scenario)
        except KsimError as error:
            assert str(error).strip() and "\n" not in str(error)
            return
        check(scenario, result)


def check(scenario: Scenario, result: Result) -> None:
    requests_are_accounted_for(scenario, result)
    latencies_are_ordered(result)
    energy_adds_up(result)
    numbers_are_numbers(result)
    phases_add_up(result)
    transfers_add_up(result)
    loads_are_hits(result)
    choices_are_of_candidates(result)
    assert result.report() and result.kernels.num_rows and result.attribution is not None
    again = simulate(Scenario.of(tomllib.loads(result.scenario)))
    assert again.summary == result.summary and again.scenario == result.scenario


def requests_are_accounted_for(scenario: Scenario, result: Result) -> None:
    summary, rows = result.summary, result.requests.to_pylist()
    sent = {request.id: request for request in scenario.workload.requests(scenario.seed)}
    assert summary["completed"] + summary["failed"] + summary["unfinished"] == len(rows) == len(sent)
    assert summary["unfinished"] == 0
    longest = [pool.deployment.serve.max_model_len for pool in Fleet.of(scenario).pools for _ in pool.places]
    for row in rows:
        request = sent[row["id"]]
        assert row["prompt_tokens"] == request.prompt
        if row["status"] == "completed":
            assert row["output_tokens"] == min(request.output, longest[row["engine"]] - request.prompt)
            assert 0 <= row["cached_tokens"] < request.prompt + request.output
        else:
            assert row["reason"] and (not row["output_tokens"] or row["prefill_engine"] >= 0)
    done = [row for row in rows if row["status"] == "completed"]
    assert summary["total_output_tokens"] == sum(row["output_tokens"] for row in done)
    assert summary["total_input_tokens"] == sum(row["prompt_tokens"] for row in done)


def phases_add_up(result: Result) -> None:
    rows = {row["id"]: row for row in result.requests.to_pylist()}
    for phases in result.attribution.to_pylist():
        row, seconds = rows[phases.pop("id")], {"to_first": 0.0, "after": 0.0}
        for name, spent in phases.items():
            assert spent is None or spent >= -1e-9, name
            seconds[name.partition(".")[0]] += spent or 0.0
        assert seconds["to_first"] == pytest.approx(row["ttft_s"], abs=1e-8)
        assert sum(seconds.values()) == pytest.approx(row["e2e_s"], abs=1e-8)


def transfers_add_up(result: Result) -> None:
    """Bytes that pools sent are those that pools received."""
    pools = list(result.summary.get("pools", {}).values())
    sent, received = (sum(pool.get(f"bytes_{way}") or 0.0 for pool in pools) for way in ("sent", "received"))
    assert sent == pytest.approx(received)
    if any(pool["role"] == "prefill" for pool in pools):
        assert received == pytest.approx(result.summary["bytes_transferred"])


def loads_are_hits(result: Result) -> None:
    """Tokens that came from tiers are those that were loaded, and the bytes go with them."""
    columns = result.requests.column_names
    found = sum(sum(result.requests[name].to_pylist()) for name in columns
                if name in ("cpu_tokens", "disk_tokens", "storage_tokens"))
    copies = result.log.columns(Copied)
    loads = (copies["target"] == "gpu") & ~copies["again"].astype(bool)
    assert found == copies["tokens"][loads].sum() == result.summary.get("external_prefix_cache_hits", 0)
    assert bool(copies["bytes"][loads].sum()) == bool(found)


def choices_are_of_candidates(result: Result) -> None:
    rows = result.routing.to_pylist() if result.routing else []
    known = set(result.requests["id"].to_pylist())
    for row in rows:
        assert row["request"] in known and row["engine"] in row["engines"]
        assert len({len(value) for value in row.values() if isinstance(value, list)}) == 1


def latencies_are_ordered(result: Result) -> None:
    for row in result.requests.to_pylist():
        if row["status"] == "completed":
            assert 0 <= row["queue_s"] <= row["ttft_s"] <= row["e2e_s"]
            assert row["tpot_s"] is None or row["tpot_s"] >= 0
            assert row["itl_max_s"] is None or 0 <= row["itl_p50_s"] <= row["itl_max_s"] <= row["e2e_s"]
    for name in LATENCIES:
        values = [result.summary[f"p{percent}_{name}_ms"] for percent in PERCENTILES]
        assert all(value is None for value in values) or all(low <= high for low, high in pairwise(values))
    steps = result.steps
    assert np.all(steps["end_s"].to_numpy() >= steps["start_s"].to_numpy())


def energy_adds_up(result: Result) -> None:
    summary = result.summary
    total = summary["energy_joules"]
    close = {"rel": 1e-6, "abs": 1e-6}
    assert total == pytest.approx(summary["static_energy_joules"] + summary["dynamic_energy_joules"], **close)
    prefill, decode, idle, unattributed = (
        summary[f"{part}_energy_joules"] for part in ("prefill", "decode", "idle", "unattributed"))
    assert min(prefill, decode, idle, unattributed) >= -1e-6 * total
    assert prefill + decode + idle == pytest.approx(total, **close)
    requests = sum(joules or 0.0 for joules in result.requests["joules"].to_pylist())
    assert requests + idle + unattributed == pytest.approx(total, **close)


def numbers_are_numbers(result: Result) -> None:
    json.dumps(result.summary, allow_nan=False)
    for key in SHARES:
        assert result.summary[key] is None or -1e-9 <= result.summary[key] <= 1 + 1e-9, key
