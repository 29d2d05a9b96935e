"""The numbers of summary.json: those of `vllm bench serve`, by its names and definitions, and more.

docs/glossary.md says of every key what it means.
"""

from typing import Any

import numpy as np
from attrs import frozen

from ksim.results.arrays import Bools, Floats, Ints, floats, ratio
from ksim.results.history import History
from ksim.results.saturation import saturation
from ksim.results.series import concurrency
from ksim.results.uncertainty import uncertainty

Summary = dict[str, Any]
PERCENTILES = (50, 90, 95, 99)
LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue")


@frozen
class Limits:
    """Latency targets in seconds, each optional: to the first token, per token after it, and to the last."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.ttft, self.tpot, self.e2el))


def summarise(history: History, limits: Limits = Limits(), closed: bool = False) -> Summary:
    """Judge a run; what nothing in it can tell (no request completed, no target set) is None.

    *closed* says that clients waited for answers before they asked again.
    """
    return {
        **_counts(history),
        **_throughput(history, limits),
        **_latencies(history),
        **uncertainty(history),
        **_cache(history),
        **_batches(history),
        **_utilisation(history),
        **_energy(history),
        **_clocks(history),
        **saturation(history, closed),
    }


def spread(name: str, seconds: Floats) -> Summary:
    """Mean, median, population standard deviation and linear percentiles of *seconds*, in milliseconds."""
    centre = ("mean", "median", "std")
    keys = [f"{statistic}_{name}_ms" for statistic in (*centre, *(f"p{percent}" for percent in PERCENTILES))]
    if not len(seconds):
        return dict.fromkeys(keys)
    values = [seconds.mean(), np.median(seconds), seconds.std(), *np.percentile(seconds, PERCENTILES)]
    return dict(zip(keys, (float(1e3 * value) for value in values), strict=True))


def good(history: History, limits: Limits) -> Bools:
    """Which requests completed within all of *limits*; an output of one token has no time per token to miss."""
    requests, within = history.requests, history.requests.completed.copy()
    tpot = np.where(requests.output > 1, requests.tpot, 0.0)
    for limit, value in ((limits.ttft, requests.ttft), (limits.tpot, tpot), (limits.e2el, requests.e2e)):
        if limit is not None:
            within[within] = value[within] <= limit
    return within


def _counts(history: History) -> Summary:
    requests = history.requests
    done, prompts = requests.completed, _prompts(history)
    return {
        "duration": history.duration,
        "completed": int(done.sum()),
        "failed": int((~np.isnan(requests.rejected)).sum()),
        "unfinished": int((~done & np.isnan(requests.rejected)).sum()),
        "total_input_tokens": int(prompts[done].sum()),
        "total_output_tokens": int(requests.output[done].sum()),
    }


def _prompts(history: History) -> Ints:
    return history.requests.prompt


def _throughput(history: History, limits: Limits) -> Summary:
    requests, duration = history.requests, history.duration
    done = requests.completed
    output = int(requests.output[done].sum())
    met = int(good(history, limits).sum()) if limits else None
    ended = int((done | ~np.isnan(requests.rejected)).sum())
    in_flight = concurrency(history)
    return {
        "request_throughput": ratio(int(done.sum()), duration),
        "request_goodput": None if met is None else ratio(met, duration),
        "slo_attainment": None if met is None else ratio(met, ended),
        "output_throughput": ratio(output, duration),
        "total_token_throughput": ratio(float(_prompts(history)[done].sum()) + output, duration),
        "max_output_tokens_per_s": _busiest_second(history),
        "max_concurrent_requests": int(in_flight.peak),
        "mean_concurrent_requests": ratio(float(in_flight.integral(np.array([duration]))[0]), duration),
    }


def _busiest_second(history: History) -> float:
    """Output tokens in the fullest of the one-second buckets that begin with the first arrival."""
    requests = history.requests
    if not requests.completed.any():
        return 0.0
    begin = requests.arrival[requests.completed].min()
    buckets = (requests.tokens_of(requests.completed) - begin).astype(np.int64)
    return float(np.bincount(buckets).max(initial=0))


def _latencies(history: History) -> Summary:
    requests, done = history.requests, history.requests.completed
    return {
        **spread("ttft", requests.ttft[done]),
        **spread("tpot", requests.tpot[done & (requests.output > 1)]),
        **spread("itl", requests.gaps_of(done)),
        **spread("e2el", requests.e2e[done]),
        **spread("queue", requests.queue[done]),
    }


def _cache(history: History) -> Summary:
    requests, steps = history.requests, history.steps
    again = requests.readmitted
    weights = steps.end - steps.start
    return {
        "prefix_cache_hit_rate": ratio(float(np.nansum(requests.cached)), float(np.nansum(requests.known))),
        "preemptions": len(requests.preempted["time"]),
        "recomputed_tokens": int((again["known"] - again["cached"]).sum()),
        "kv_cache_usage_mean": ratio(float(steps.kv_usage @ weights), float(weights.sum())),
        "kv_cache_usage_peak": float(steps.kv_usage.max()) if len(steps) else None,
    }


def _batches(history: History) -> Summary:
    steps = history.steps
    count = len(steps)
    return {
        "steps": count,
        "mean_step_ms": ratio(1e3 * float((steps.end - steps.start).sum()), count),
        "mean_batch_tokens": ratio(int(steps.tokens.sum()), count),
        "mean_batch_sequences": ratio(int((steps.decodes + steps.prefills).sum()), count),
    }


def _utilisation(history: History) -> Summary:
    """Work done over the work the GPUs could have done at their peaks, in the whole run and while busy."""
    steps, engines = history.steps, history.engines
    gpus = floats(engines, "ranks") * floats(engines, "stages")
    summary: Summary = {"gpus": history.gpus}
    for name, work, peak in (("mfu", steps.flops, "peak_flops"), ("mbu", steps.bytes, "peak_bandwidth")):
        possible = float(floats(engines, peak) @ gpus) * history.duration
        while_busy = float(steps.gpu_seconds @ steps.per_engine(peak))
        summary[name] = ratio(float(work.sum()), possible)
        summary[f"busy_{name}"] = ratio(float(work.sum()), while_busy)
    available = history.gpus * history.duration
    summary["gpu_busy_share"] = ratio(history.busy_gpu_seconds, available)
    summary["host_share"] = ratio(history.host_gpu_seconds, available)
    return summary


def _clocks(history: History) -> Summary:
    """How fast the SMs ran while they worked, and for how much of that time below the boost clock."""
    steps = history.steps
    seconds, clocks = steps.lane_seconds * steps.lane_ranks, steps.lanes.pace("clock")
    known = ~np.isnan(clocks)
    slowed = float(seconds[known & (steps.lanes.pace("energy") < 1.0)].sum())
    return {
        "mean_sm_clock_mhz": ratio(1e-6 * float(seconds[known] @ clocks[known]), float(seconds[known].sum())),
        "throttled_share": ratio(slowed, float(seconds[known].sum())),
    }


def _energy(history: History) -> Summary:
    static, dynamic = history.static_joules, float(history.steps.joules.sum())
    tokens, total = int(history.requests.output.sum()), static + dynamic
    return {
        "generated_tokens": tokens,
        "energy_joules": total,
        "static_energy_joules": static,
        "dynamic_energy_joules": dynamic,
        "average_watts": ratio(total, history.duration),
        "joules_per_output_token": ratio(total, tokens),
        "tokens_per_joule": ratio(tokens, total),
    }
