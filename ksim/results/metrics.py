"""The numbers of summary.json: those of `vllm bench serve`, by its names and definitions, and more.

They include whether the queue kept growing (`saturation`), and how sure latencies are (`uncertainty`).
docs/glossary.md defines every key.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ksim.flow.events import EngineBuilt
from ksim.results.gateway import gateway_summary
from ksim.results.history import History
from ksim.results.numbers import LATENCIES, PERCENTILES, LatencyTargets, Summary
from ksim.results.series import Series, concurrency, waiting
from ksim.results.steps import Bools, Floats, Ints, floats, ratio
from ksim.results.totals import Served, Work

#: The shortest queue that counts at the last arrival: in requests, or in prompt tokens for so many of the largest
#: steps.
_SHORTEST = 8
#: The growth that counts, if the queue never shrank: its length at the last arrival over the maximum of the first half.
_GROWTH = 1.5
#: The other rule: its length in square roots of the number of arrivals, and the mean of the last quarter over that of
#: any quarter before.  At the sustainable rate, a queue gets that long now and then; below it, it does not.  Tests were
#: a hundred runs of 400 (2,000) Poisson arrivals at one server with constant or exponential service, and at 32 servers
#: with exponential service.  Both rules together call, on average, so many of them saturated: 6 (1) at 0.9 times the
#: sustainable rate, 55 (92) at 1.1 times, 87 (100) at 1.2 times.
DRIFT, _RISE = 2.0, 1.1
#: Arrivals within a smaller share of the run count as simultaneous.
_SPREAD = 0.01
#: The fewest completions for a rate; the number of parts for its interval; Student's t for so many parts at 90 %.
_FEWEST, _PARTS, _STUDENT = 20, 10, 1.833
#: The shortest time to count in, in mean service times.  In less, most completions are those of the first batch: of
#: runs of two loads, three shorter ones told 1.3 to 7.1 requests/s where long ones tell 3.3 to 9.7; four longer ones
#: had that in their intervals.
_LIVES = 1.0

_RATES = ("sustainable_request_rate", "sustainable_request_rate_low", "sustainable_request_rate_high")
SATURATION_KEYS = ("waiting_at_last_arrival", "waiting_tokens_at_last_arrival", "saturated", *_RATES)


def saturation(history: History, closed: bool = False) -> dict[str, Any]:
    """The queue at the last arrival, whether it kept growing and, if so, the rate that the system sustains.

    The rate is in requests/s, with the ends of its 90 % interval.  Requests that all arrive together wait by design,
    so arrivals must take more than a hundredth of the run.  In a *closed* loop, where clients wait for responses
    before they send the next request, no queue can keep growing.
    """
    arrivals = history.requests.arrival
    found = {"waiting_at_last_arrival": 0, "waiting_tokens_at_last_arrival": 0, "saturated": False,
             **dict.fromkeys(_RATES)}
    if not len(arrivals):
        return found
    queue = waiting(history)
    waits, tokens = queue.at(arrivals), waiting(history, history.requests.prompt.astype(np.float64)).at(arrivals)
    found |= {"waiting_at_last_arrival": int(waits[-1]), "waiting_tokens_at_last_arrival": int(tokens[-1])}
    spread_out = arrivals[-1] - arrivals[0] > _SPREAD * history.duration
    full = _SHORTEST * float(history.steps.tokens.max(initial=1))
    found["saturated"] = bool(not closed and spread_out and (
        _never_shrank(waits, _SHORTEST) or drifted(waits) or _never_shrank(tokens, full)))
    return {**found, **sustained(history, queue)} if found["saturated"] else found


def _quarters(queue: Floats) -> list[float]:
    return [float(quarter.mean()) for quarter in np.array_split(queue, 4) if len(quarter)]


def _never_shrank(queue: Floats, least: float) -> bool:
    """Whether it ends at *least* or more, well above the first half, with no quarter's mean below the one before."""
    grew = queue[-1] >= least and queue[-1] > _GROWTH * queue[: (len(queue) + 1) // 2].max()
    return bool(grew) and all(later >= earlier for earlier, later in pairwise(_quarters(queue)))


def drifted(queue: Floats, drift: float = DRIFT) -> bool:
    """Whether *queue*, at each arrival so far, is longer than a stable one gets by chance.

    That is *drift* square roots of the number of arrivals, and more than any quarter before the last one.
    """
    *before, last = _quarters(queue)
    long = queue[-1] >= max(_SHORTEST, drift * np.sqrt(len(queue)))
    return bool(long) and last > _RISE * max(before, default=0.0)


def sustained(history: History, queue: Series) -> dict[str, float | None]:
    """The rate of completions while requests waited; None if there are too few, or requests waited too shortly.

    Counting begins one mean service time after the queue was last empty before the last arrival, so that all sequence
    slots have been taken and released.  It ends when the queue is empty.  The interval is Student's t over the counts
    in ten parts of that time.
    """
    requests, arrivals = history.requests, history.requests.arrival
    empty = queue.times[queue.values <= 0]
    begin = max(empty[empty < arrivals[-1]], default=float(arrivals[0]))
    end = min(empty[empty >= arrivals[-1]], default=history.duration)
    inside = requests.completed & (requests.admitted >= begin) & (requests.admitted <= end)
    service = float((requests.finished - requests.admitted)[inside].mean()) if inside.any() else 0.0
    begin += service
    ends = requests.finished[requests.completed]
    counts, _ = np.histogram(ends[(ends >= begin) & (ends <= end)], _PARTS, (begin, max(begin, end)))
    if counts.sum() < _FEWEST or end - begin <= _LIVES * service:
        return dict.fromkeys(_RATES)
    rates = counts * _PARTS / (end - begin)
    middle, reach = float(rates.mean()), _STUDENT * float(rates.std(ddof=1)) / _PARTS**0.5
    return dict(zip(_RATES, (middle, max(0.0, middle - reach), middle + reach), strict=True))


#: The statistics of latencies that have an interval.
_JUDGED: dict[str, Callable[[Floats], Any]] = {"median": np.median, "p99": lambda values: np.percentile(values, 99)}

INTERVAL_KEYS = tuple(f"{statistic}_{name}_{side}_ms" for side in ("low", "high") for name in ("ttft", "tpot")
             for statistic in _JUDGED)


def uncertainty(history: History) -> dict[str, Any]:
    """90 % intervals of TTFT and TPOT, in milliseconds.

    A request's latency is off by as much as the steps in it are.  Kernels of a family err alike in all steps, so the
    steps' intervals add up.  Effects of a slower or faster engine on batches and queues are not included.  None if
    the oracle gives no intervals.
    """
    requests, done = history.requests, history.requests.completed
    several = done & (requests.output > 1)
    judged: dict[str, Any] = {}
    for side, sign in (("low", -1.0), ("high", 1.0)):
        off = _accumulated(history, side)
        ttft = requests.ttft + sign * (off(requests.first_token) - off(requests.arrival) + _of_prefill(history, side))
        decode = requests.last_token - requests.first_token
        decode = decode + sign * (off(requests.last_token) - off(requests.first_token))
        judged |= _statistics("ttft", side, ttft[done])
        judged |= _statistics("tpot", side, decode[several] / (requests.output[several] - 1))
    return judged


def _statistics(name: str, side: str, seconds: Floats) -> dict[str, Any]:
    known = len(seconds) > 0 and bool(np.isfinite(seconds).all())
    return {f"{statistic}_{name}_{side}_ms": float(1e3 * judge(seconds)) if known else None
            for statistic, judge in _JUDGED.items()}


def _of_prefill(history: History, side: str) -> Floats:
    """What the error up to the first token changes by where another engine prefills.

    Until it has the prompt's KV, a split request's error is that of its prefill engine.
    """
    splits, extra = history.splits, np.zeros(len(history.requests))
    if not len(splits):
        return extra
    arrival = history.requests.arrival[splits.row]
    until = np.fmax(np.fmin(splits.prefilled, history.requests.first_token[splits.row]), arrival)
    ahead, behind = (_accumulated(history, side, engine) for engine in (splits.source, splits.target))
    extra[splits.row] = ahead(until) - ahead(arrival) - (behind(until) - behind(arrival))
    return extra


def _accumulated(history: History, side: str, engine: Ints | None = None) -> Callable[[Floats], Floats]:
    """Cumulative errors, in seconds, of the steps of *engine*, by default each request's own, up to each moment."""
    steps, own = history.steps, history.requests.engine if engine is None else engine
    costs = steps.stage_steps.costs
    off = steps.added(abs(getattr(costs, side) - costs.seconds))
    curves = [_curve(history, off, place) for place in range(len(history.engines))]

    def by(times: Floats) -> Floats:
        total = np.zeros(len(times))
        for place, (knots, heights) in enumerate(curves):
            of: Bools = own == place
            total[of] = np.interp(times[of], knots, heights)
        return total

    return by


def _curve(history: History, off: Floats, place: int) -> tuple[Floats, Floats]:
    """Times, and the cumulative error at each: each step adds its error evenly from start to end."""
    rows = history.steps.rows(place)
    start, end = history.steps.start[rows], history.steps.end[rows]
    after = np.cumsum(off[rows])
    before = after - off[rows]
    knots = np.maximum.accumulate(np.stack([start, end], axis=1).ravel())
    heights = np.stack([before, after], axis=1).ravel()
    return (knots, heights) if len(knots) else (np.zeros(1), np.zeros(1))


_NO_TARGETS = LatencyTargets()


def summarise(history: History, limits: LatencyTargets = _NO_TARGETS, closed: bool = False) -> Summary:
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
    done = history.requests.completed
    return {key: value for name in LATENCIES for key, value in spread(name, latency(history, name, done)).items()}


def latency(history: History, name: str, done: Bools) -> Floats:
    """The seconds of latency *name* of the requests that are *done*, as the numbers of a run count them.

    Those of itl are all gaps between tokens; an output of one token has no tpot.
    """
    requests = history.requests
    if name == "itl":
        return requests.gaps_of(done)
    return requests.latency(name)[done & (requests.output > 1) if name == "tpot" else done]


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
