"""The numbers of summary.json: those of `vllm bench serve`, by its names and definitions, and more.

docs/glossary.md defines every key.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen

from ksim.flow.events import EngineBuilt
from ksim.results.arrays import Bools, Floats, floats, ratio
from ksim.results.gateway import gateway_summary
from ksim.results.history import History
from ksim.results.saturation import saturation
from ksim.results.series import concurrency
from ksim.results.totals import Served, Work
from ksim.results.uncertainty import uncertainty

Summary = dict[str, Any]
PERCENTILES = (50, 90, 95, 99)
LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue")


@frozen
class LatencyTargets:
    """Latency targets in seconds, each optional: to the first token, per token after it, and to the last token."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.ttft, self.tpot, self.e2el))


def summarise(history: History, limits: LatencyTargets = LatencyTargets(), closed: bool = False) -> Summary:
    """The summary of a run; None for what it cannot determine (no completed request, no target).

    *closed* says that clients waited for responses before they sent the next request.
    """
    work, served = history_totals(history, limits)
    in_flight, duration = concurrency(history), history.duration
    return {
        **counts(served, duration),
        **throughput(served, duration, limits),
        "max_output_tokens_per_s": _busiest_second(history),
        "max_concurrent_requests": int(in_flight.peak),
        "mean_concurrent_requests": ratio(float(in_flight.integral(np.array([duration]))[0]), duration),
        **_latencies(history),
        **uncertainty(history),
        "extrapolated_share": ratio(work.extrapolated, work.gpu_seconds),
        **cache(work, served),
        **batches(work),
        **utilisation(work, history.engines, duration),
        **drawn(work, served, history.static_joules, duration),
        **clocks(work),
        **saturation(history, closed),
        **gateway_summary(history),
    }


def history_totals(history: History, limits: LatencyTargets) -> tuple[Work, Served]:
    """The totals of all steps and all requests of a run."""
    whole = np.ones(len(history.requests), dtype=bool)
    return Work.of(history, np.ones(len(history.steps), dtype=bool)), Served.of(history, whole, good(history, limits))


def spread(name: str, seconds: Floats) -> Summary:
    """Mean, median, population standard deviation and linear percentiles of *seconds*, in milliseconds.

    It reorders *seconds*.
    """
    centre = ("mean", "median", "std")
    keys = [f"{statistic}_{name}_ms" for statistic in (*centre, *(f"p{percent}" for percent in PERCENTILES))]
    if not len(seconds):
        return dict.fromkeys(keys)
    mean, deviation = seconds.mean(), seconds.std()
    percentiles = np.percentile(seconds, PERCENTILES, overwrite_input=True)  # may be as long as the number of tokens
    values = [mean, percentiles[PERCENTILES.index(50)], deviation, *percentiles]
    return dict(zip(keys, (float(1e3 * value) for value in values), strict=True))


def good(history: History, limits: LatencyTargets) -> Bools:
    """Which requests completed within all *limits*; an output of one token has no TPOT to exceed."""
    requests, within = history.requests, history.requests.completed.copy()
    tpot = np.where(requests.output > 1, requests.tpot, 0.0)
    for limit, value in ((limits.ttft, requests.ttft), (limits.tpot, tpot), (limits.e2el, requests.e2e)):
        if limit is not None:
            within[within] = value[within] <= limit
    return within


def counts(served: Served, duration: float) -> Summary:
    """Requests by how they ended, and their tokens."""
    return {
        "duration": duration,
        "completed": served.completed,
        "failed": served.failed,
        **({"aborted": served.aborted} if served.aborted else {}),
        "unfinished": served.unfinished,
        "total_input_tokens": served.prompts,
        "total_output_tokens": served.outputs,
    }


def throughput(served: Served, duration: float, limits: LatencyTargets) -> Summary:
    """Requests and tokens per second."""
    ended = served.completed + served.failed
    return {
        "offered_request_rate": served.offered,
        "request_throughput": ratio(served.completed, duration),
        "request_goodput": ratio(served.met, duration) if limits else None,
        "slo_attainment": ratio(served.met, ended) if limits else None,
        "output_throughput": ratio(served.outputs, duration),
        "total_token_throughput": ratio(served.prompts + served.outputs, duration),
    }


def _busiest_second(history: History) -> float:
    """Output tokens in the fullest of the one-second buckets that begin with the first arrival."""
    requests = history.requests
    if not requests.completed.any():
        return 0.0
    begin = requests.arrival[requests.completed].min()
    return float(requests.per_second(requests.completed, begin)[1].max(initial=0))


def _latencies(history: History) -> Summary:
    requests, done = history.requests, history.requests.completed
    return {
        **spread("ttft", requests.ttft[done]),
        **spread("tpot", requests.tpot[done & (requests.output > 1)]),
        **spread("itl", requests.gaps_of(done)),
        **spread("e2el", requests.e2e[done]),
        **spread("queue", requests.queue[done]),
    }


def cache(work: Work, served: Served) -> Summary:
    """KV cache usage, prefix hits, and preemptions."""
    return {
        "prefix_cache_hit_rate": ratio(served.found, served.looked_up),
        **({"external_prefix_cache_queries": int(served.looked_up - served.found),
            "external_prefix_cache_hits": sum(served.loaded.values())} if served.loaded else {}),
        **{f"{tier}_hit_rate": ratio(tokens, served.looked_up) for tier, tokens in served.loaded.items()},
        "preemptions": served.preemptions,
        "recomputed_tokens": served.recomputed,
        "kv_cache_usage_mean": ratio(work.kv_seconds, work.seconds),
        "kv_cache_usage_peak": work.kv_peak if work.steps else None,
    }


def batches(work: Work) -> Summary:
    """The number of steps, the size of their batches, what drafts brought, and which images were encoded."""
    return {
        "steps": work.steps,
        "mean_step_ms": ratio(1e3 * work.seconds, work.steps),
        "mean_batch_tokens": ratio(work.tokens, work.steps),
        "mean_batch_sequences": ratio(work.sequences, work.steps),
        **speculation(work),
        **({"images": work.images, "encoder_tokens": work.encoder_tokens} if work.images else {}),
    }


def speculation(work: Work) -> Summary:
    """How much was drafted and accepted, by the names of vLLM's metrics and of `vllm bench serve`; nothing where
    engines do not speculate."""
    verified, *accepted = work.verifications.tolist()
    if not accepted:
        return {}
    return {
        "spec_decode_num_drafts": verified,
        "spec_decode_num_draft_tokens": work.drafts,
        "spec_decode_num_accepted_tokens": sum(accepted),
        "spec_decode_acceptance_rate": ratio(100.0 * sum(accepted), work.drafts),
        "spec_decode_acceptance_length": 1.0 + sum(accepted) / verified if verified else None,
        "spec_decode_per_position_acceptance_rates": [ratio(count, verified) for count in accepted],
    }


def utilisation(work: Work, engines: Sequence[EngineBuilt], duration: float) -> Summary:
    """FLOP and bytes over what the GPUs could do at their peaks, in the whole run and while busy."""
    gpus = floats(engines, "ranks") * floats(engines, "stages")
    available = float(gpus.sum()) * duration
    return {
        "gpus": int(gpus.sum()),
        "mfu": ratio(work.flops, float(floats(engines, "peak_flops") @ gpus) * duration),
        "busy_mfu": ratio(work.flops, work.flops_possible),
        "mbu": ratio(work.bytes, float(floats(engines, "peak_bandwidth") @ gpus) * duration),
        "busy_mbu": ratio(work.bytes, work.bytes_possible),
        "gpu_busy_share": ratio(work.gpu_seconds, available),
        "host_share": ratio(work.host_seconds, available),
    }


def clocks(work: Work) -> Summary:
    """SM clocks while the GPUs worked, and the share of that time below the boost clock."""
    return {
        "mean_sm_clock_mhz": ratio(1e-6 * work.cycles, work.known),
        "throttled_share": ratio(work.slowed, work.known),
        "above_limit_share": ratio(work.above, work.known),
        "max_step_watts": work.hottest or None,
    }


def drawn(work: Work, served: Served, static: float, duration: float) -> Summary:
    """The energy of a run whose GPUs drew *static* joules."""
    tokens, total = served.generated, static + work.joules
    return {
        "generated_tokens": tokens,
        "energy_joules": total,
        "static_energy_joules": static,
        "dynamic_energy_joules": work.joules,
        "average_watts": ratio(total, duration),
        "joules_per_output_token": ratio(total, tokens),
        "tokens_per_joule": ratio(tokens, total),
    }
