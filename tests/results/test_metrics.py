import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from ksim.flow.events import Admitted, Arrived, Emitted, Finished, Stepped
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.results.history import History
from ksim.results.metrics import summarise
from ksim.results.numbers import LATENCIES, LatencyTargets
from ksim.results.series import concurrency, power
from tests.properties import examples

from . import by_hand, fabricate
from .strategies import logs


def summary_of(log: Log, limits: LatencyTargets | None = None):
    return summarise(History(log), limits or LatencyTargets())


def test_counts_and_throughput_of_the_small_log():
    summary = summary_of(by_hand.small())
    expected = {
        "duration": 4.5, "completed": 2, "failed": 1, "unfinished": 0, "total_input_tokens": 30,
        "total_output_tokens": 4,
        "request_throughput": 2 / 4.5, "request_goodput": None, "slo_attainment": None, "output_throughput": 4 / 4.5,
        "total_token_throughput": 34 / 4.5,
        # Tokens come 1.25, 2.25, 2.25 and 3.5 s after the first arrival.
        "max_output_tokens_per_s": 2.0, "max_concurrent_requests": 2, "mean_concurrent_requests": (3.5 + 1.125) / 4.5,
        "generated_tokens": 4, "preemptions": 0, "recomputed_tokens": 0,
    }
    assert {key: summary[key] for key in expected} == pytest.approx(expected)


def test_latencies_of_the_small_log():
    summary = summary_of(by_hand.small())
    ttft, itl = [1250.0, 1125.0], [1000.0, 1250.0]
    expected = {
        "mean_ttft_ms": 1187.5, "median_ttft_ms": 1187.5, "std_ttft_ms": np.std(ttft), "p90_ttft_ms": 1237.5,
        "mean_tpot_ms": 1125.0, "std_tpot_ms": 0.0, "p99_tpot_ms": 1125.0,
        "mean_itl_ms": 1125.0, "p50_itl_ms": 1125.0, "p99_itl_ms": np.percentile(itl, 99),
        "mean_e2el_ms": (3500 + 1125) / 2, "mean_queue_ms": 62.5, "p50_queue_ms": 62.5,
    }
    assert {key: summary[key] for key in expected} == pytest.approx(expected)


def test_work_and_energy_of_the_small_log():
    summary = summary_of(by_hand.small())
    expected = {
        "steps": 3, "mean_step_ms": 500.0, "mean_batch_tokens": 28 / 3, "mean_batch_sequences": 4 / 3, "gpus": 2,
        "mfu": 3 * 108 / (4.5 * 1000), "busy_mfu": 108 / 500, "mbu": 3 * 16 / 450, "busy_mbu": 16 / 50,
        "gpu_busy_share": 1.5 / 4.5, "host_share": 1.5 / 4.5,
        "static_energy_joules": 2 * 100 * 4.5, "dynamic_energy_joules": 3 * 2 * 30.0, "energy_joules": 1080.0,
        "average_watts": 240.0, "joules_per_output_token": 270.0, "tokens_per_joule": 1 / 270,
        "prefix_cache_hit_rate": 4 / 30, "kv_cache_usage_mean": 0.02, "kv_cache_usage_peak": 0.03,
        "waiting_at_last_arrival": 0,
    }
    assert {key: summary[key] for key in expected} == pytest.approx(expected)
    assert summary["saturated"] is False


@pytest.mark.parametrize(("limits", "good"), [
    (LatencyTargets(ttft=1.2), 1),
    (LatencyTargets(ttft=1.25), 2),
    (LatencyTargets(tpot=1.0), 1),  # the request of one token cannot miss it
    (LatencyTargets(ttft=1.2, tpot=1.0, e2el=1.125), 1),
    (LatencyTargets(e2el=1.0), 0),
])
def test_goodput_counts_requests_within_all_targets(limits, good):
    summary = summary_of(by_hand.small(), limits)
    assert summary["request_goodput"] == pytest.approx(good / 4.5)
    assert summary["slo_attainment"] == pytest.approx(good / 3)


def as_vllm_does(log: Log) -> dict[str, float]:
    """The arithmetic of vllm/benchmarks/serve.py at 009e6d4, request by request and token by token."""
    times = {(step.engine, step.index): step.time for step in log.of(Stepped)}
    arrivals = {event.request.id: event.time for event in log.of(Arrived)}
    done = {event.request_id for event in log.of(Finished)}
    tokens: dict[int, list[float]] = {}
    for run in log.of(Emitted):
        tokens.setdefault(run.request_id, []).extend(times[run.engine, i] for i in range(run.first, run.last + 1))
    ttfts, tpots, itls, e2els, buckets = [], [], [], [], {}
    first = min(arrivals[request] for request in done)
    for request in done:
        own, arrival = tokens[request], arrivals[request]
        ttfts.append(own[0] - arrival)
        e2els.append(own[-1] - arrival)
        if len(own) > 1:
            tpots.append((own[-1] - own[0]) / (len(own) - 1))
        itls += [late - early for early, late in pairwise(own)]
        for time in own:
            buckets[int(time - first)] = buckets.get(int(time - first), 0) + 1
    result = {"max_output_tokens_per_s": float(max(buckets.values()))}
    for name, values in (("ttft", ttfts), ("tpot", tpots), ("itl", itls), ("e2el", e2els)):
        result |= {f"mean_{name}_ms": np.mean(values) * 1000, f"median_{name}_ms": np.median(values) * 1000,
                   f"std_{name}_ms": np.std(values) * 1000}
        result |= {f"p{p}_{name}_ms": np.percentile(values, p) * 1000 for p in (50, 90, 95, 99)}
    return result


@pytest.mark.parametrize("log", [fabricate.log(), fabricate.log(count=90, rate=200, engines=3, preempt_every=5)])
def test_definitions_are_those_of_vllm(log):
    expected = as_vllm_does(log)
    summary = summary_of(log)
    assert {key: summary[key] for key in expected} == pytest.approx(expected, rel=1e-9)


def test_first_admissions_make_the_hit_rate_and_later_ones_the_recomputed_tokens():
    log = fabricate.log(preempt_every=9)
    first = [event for event in log.of(Admitted) if not event.again]
    again = [event for event in log.of(Admitted) if event.again]
    summary = summary_of(log)
    assert summary["prefix_cache_hit_rate"] == pytest.approx(sum(e.cached for e in first) / sum(e.known for e in first))
    assert summary["preemptions"] == len(again) > 0
    assert summary["recomputed_tokens"] == sum(event.known - event.cached for event in again)


@pytest.mark.parametrize("log", [
    Log(),
    Log([by_hand.ENGINE]),
    Log([by_hand.ENGINE], [Arrived(0.0, Request(1, 0.0, 5, 5))]),
    fabricate.cut(by_hand.small(), 2.5),
    fabricate.cut(by_hand.small(), 1.0),
])
def test_a_run_in_which_nothing_completed_has_no_latency(log):
    summary = summary_of(log, LatencyTargets(ttft=1.0))
    assert summary["completed"] == 0
    assert all(summary[f"{statistic}_{name}_ms"] is None for statistic in ("mean", "std", "p99") for name in LATENCIES)
    assert not any(isinstance(value, float) and math.isnan(value) for value in summary.values())


@examples(25)
@given(logs())
def test_laws_of_any_log(log):
    history = History(log)
    summary = summarise(history)
    for name in LATENCIES:
        ordered = [summary[f"{key}_{name}_ms"] for key in ("p50", "p90", "p95", "p99")]
        assert ordered == sorted(ordered, key=lambda value: value or 0.0)
    assert summary["completed"] + summary["failed"] + summary["unfinished"] == len(list(log.of(Arrived)))
    # Little's law: requests in flight = arrival rate x time in the system.
    if summary["completed"]:
        in_flight = concurrency(history).means(np.array([0.0, history.duration]))[0]
        assert in_flight == pytest.approx(summary["request_throughput"] * summary["mean_e2el_ms"] / 1e3)
    # Energy is the area under the power.
    assert power(history).integral(np.array([history.duration]))[0] == pytest.approx(summary["energy_joules"])
    shares = summary["gpu_busy_share"], summary["host_share"], summary["mfu"], summary["mbu"]
    assert all(share is None or 0 <= share <= 1 + 1e-9 for share in shares)
