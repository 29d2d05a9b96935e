"""The numbers of summary.json: those of `vllm bench serve`, by its names and definitions, and more.

They are made of totals of steps and requests, which can be added up over the parts of a run.  `uncertainty` says how
sure latencies are.  docs/glossary.md defines every key.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np
from attrs import define, evolve, field, fields

from ksim.flow.events import GONE, EngineBuilt
from ksim.results.history import History, allocated_gpu_seconds, is_scaled
from ksim.results.numbers import LATENCIES, PERCENTILES, STATISTICS, LatencyTargets, Summary, latency_key
from ksim.results.requests import Requests
from ksim.results.series import concurrency, saturation
from ksim.results.steps import Bools, Floats, Ints, floats, product, ratio, shares, sums


def _largest(one: Any, other: Any) -> Any:
    return np.maximum(one, other)


def _by_key(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


class Added:
    """Fields are added one by one, unless their metadata says otherwise."""

    def __add__(self, other: Any) -> Any:
        cls: Any = type(self)
        joined: dict[str, Any] = {}
        for each in fields(cls):
            one, two = getattr(self, each.name), getattr(other, each.name)
            how: Callable[[Any, Any], Any] | None = each.metadata.get("joined")
            joined[each.name] = how(one, two) if how else one + two
        return cls(**joined)


@define(eq=False)
class StepTotals(Added):
    """Totals of steps: seconds, tokens and sequences; FLOP, bytes and dynamic joules of all GPUs; GPU seconds.

    Dummy steps of data-parallel ranks without work add to all sums of GPUs, but not to `steps` or `seconds`.
    `kv_seconds` are weighted with the share of KV blocks in use.  `flops_possible` and `bytes_possible` are what GPUs
    could have done while they worked.  `reach` is how far the joules may be off, and `static` the static joules of
    the steps.  `extrapolated` counts GPU seconds of shapes outside what was measured.

    GPU seconds at a `known` clock add up to so many `cycles`; `slowed` ones are below the boost clock.  In those
    `above`, GPUs drew more than their limit at their lowest clock.  In the `hottest` step, a GPU drew so many watts.
    `drafts` tokens were drafted, and `verifications` counts the sequences that verified them and those that accepted 1,
    2, ... of them or more.
    By engine, `asleep` has the seconds asleep before its steps, and `ended` the end of its last step.
    """

    asleep: Floats
    ended: Floats = field(metadata={"joined": _largest})
    verifications: Ints
    drafts: int = 0
    images: int = 0
    encoder_tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    sequences: int = 0
    kv_seconds: float = 0.0
    kv_peak: float = field(default=0.0, metadata={"joined": max})
    flops: float = 0.0
    bytes: float = 0.0
    flops_possible: float = 0.0
    bytes_possible: float = 0.0
    gpu_seconds: float = 0.0
    host_seconds: float = 0.0
    joules: float = 0.0
    reach: float = 0.0
    static: float = 0.0
    extrapolated: float = 0.0
    known: float = 0.0
    cycles: float = 0.0
    slowed: float = 0.0
    above: float = 0.0
    hottest: float = field(default=0.0, metadata={"joined": max})

    @classmethod
    def of(cls, history: History, which: Bools) -> "StepTotals":
        """The totals of the steps in *which*."""
        steps, engines = history.steps, len(history.engines)
        working, of_gpus = which & (steps.tokens > 0), steps.gpu_seconds[which]
        seconds = (steps.end - steps.start)[working]
        images, encoder_tokens = steps.encoded[which].sum(axis=0).tolist()
        ended = np.zeros(engines)
        np.maximum.at(ended, steps.engine[which], steps.ended[which])
        return cls(
            verifications=steps.verifications[which].sum(axis=0), drafts=int(steps.drafts[which].sum()),
            asleep=sums(steps.engine[which], history.naps[which], engines), ended=ended, steps=int(working.sum()),
            seconds=float(seconds.sum()), tokens=int(steps.tokens[which].sum()),
            sequences=int((steps.decodes + steps.prefills)[which].sum()),
            kv_seconds=product(steps.kv_usage[working], seconds),
            kv_peak=float(steps.kv_usage[which].max(initial=0.0)),
            flops=float(steps.flops[which].sum()), bytes=float(steps.bytes[which].sum()),
            flops_possible=product(of_gpus, steps.per_engine("peak_flops")[which]),
            bytes_possible=product(of_gpus, steps.per_engine("peak_bandwidth")[which]),
            gpu_seconds=float(of_gpus.sum()), host_seconds=float((history.host_waits * steps.gpus)[which].sum()),
            joules=float(steps.joules[which].sum()),
            reach=product(steps.joules[which], steps.per_engine("reach")[which]),
            static=float(steps.static[which].sum()),
            images=images, encoder_tokens=encoder_tokens,
            **_of_stage_steps(history, which[steps.stage_step_rows]))


def _of_stage_steps(history: History, which: Bools) -> dict[str, float]:
    """Totals of stage steps.

    They are GPU seconds that are extrapolated, at a known clock, below the boost clock, and above the limit at the
    lowest clock; the cycles at a known clock; and the watts of a GPU in the hottest one.
    """
    steps, stage_steps = history.steps, history.steps.stage_steps
    clocks = stage_steps.scaling.clock
    known = which & ~np.isnan(clocks)
    seconds = stage_steps.seconds * steps.stage_ranks
    least, limit, static = (steps.per_engine(name)[steps.stage_step_rows]
                            for name in ("least_clock", "limit_watts", "static_watts"))
    watts = static + shares(stage_steps.joules, stage_steps.seconds)
    above = known & (clocks <= least * (1 + 1e-9)) & (watts > limit * (1 + 1e-3))
    return {"extrapolated": float((stage_steps.costs.extrapolated * steps.stage_ranks)[which].sum()),
            "known": float(seconds[known].sum()), "cycles": product(seconds[known], clocks[known]),
            "slowed": float(seconds[known & (stage_steps.scaling.energy < 1.0)].sum()),
            "above": float(seconds[above].sum()), "hottest": float(watts[which].max(initial=0.0))}


@define(eq=False)
class RequestTotals(Added):
    """Totals of requests: how they ended, and their tokens.  Those `aborted` are among the `failed` ones.

    `met` counts requests within the targets, out of the `met_asked` that ended.  `found` counts tokens found in the
    cache, of those `looked_up`, and `loaded` those that came from tiers below it.  There are also preemptions,
    recomputed tokens, and how many `arrived` between which times.
    """

    completed: int = 0
    failed: int = 0
    aborted: int = 0
    unfinished: int = 0
    prompts: int = 0
    outputs: int = 0
    generated: int = 0
    met: int = 0
    found: float = 0.0
    looked_up: float = 0.0
    loaded: dict[str, int] = field(factory=dict, metadata={"joined": _by_key})
    preemptions: int = 0
    recomputed: int = 0
    arrived: int = 0
    first_arrival: float = field(default=inf, metadata={"joined": min})
    last_arrival: float = field(default=-inf, metadata={"joined": max})

    @property
    def offered(self) -> float | None:
        """Arrivals per second from the first to the last; None if all arrive together."""
        span = self.last_arrival - self.first_arrival
        return (self.arrived - 1) / span if span > 0 else None

    @classmethod
    def of(cls, history: History, which: Bools, good: Bools) -> "RequestTotals":
        """The totals of the requests in *which*; *good* says which ones meet the targets."""
        requests = history.requests
        done, refused = requests.completed & which, requests.ended & ~requests.completed & which
        again = requests.readmitted
        of = which[requests.rows(again["request_id"])]
        return cls(
            completed=int(done.sum()), failed=int(refused.sum()), aborted=int((aborted(requests) & which).sum()),
            unfinished=int((which & ~done & ~refused).sum()),
            prompts=int(requests.prompt[done].sum()), outputs=int(requests.output[done].sum()),
            generated=int(requests.output[which].sum()), met=int((good & which).sum()),
            found=float(np.nansum(requests.cached[which])), looked_up=float(np.nansum(requests.known[which])),
            loaded={tier: int(tokens[which].sum()) for tier, tokens in history.loaded.items()},
            preemptions=int(requests.preemptions[which].sum()),
            recomputed=int((again["known"] - again["cached"])[of].sum()), arrived=int(which.sum()),
            first_arrival=float(requests.arrival[which].min(initial=inf)),
            last_arrival=float(requests.arrival[which].max(initial=-inf)))


def aborted(requests: Requests) -> Bools:
    """Requests whose clients went before their end."""
    found = np.zeros(len(requests), dtype=bool)
    found[[row for row, reason in requests.reasons.items() if reason.startswith(GONE)]] = True
    return found


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
    curves = [_curve(history, off, index) for index in range(len(history.engines))]

    def by(times: Floats) -> Floats:
        total = np.zeros(len(times))
        for index, (knots, heights) in enumerate(curves):
            of: Bools = own == index
            total[of] = np.interp(times[of], knots, heights)
        return total

    return by


def _curve(history: History, off: Floats, index: int) -> tuple[Floats, Floats]:
    """Times, and the cumulative error at each: each step adds its error evenly from start to end."""
    rows = history.steps.rows(index)
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
        **utilisation(work, history.engines, allocated_gpu_seconds(history.engines, duration), duration),
        **drawn(work, served, history.static_joules, duration),
        **clocks(work),
        **saturation(history, closed),
    }


def history_totals(history: History, limits: LatencyTargets) -> tuple[StepTotals, RequestTotals]:
    """The totals of all steps and all requests of a run."""
    whole = np.ones(len(history.requests), dtype=bool)
    return (StepTotals.of(history, np.ones(len(history.steps), dtype=bool)),
            RequestTotals.of(history, whole, good(history, limits)))


def spread(name: str, seconds: Floats) -> Summary:
    """Mean, median, population standard deviation and linear percentiles of *seconds*, in milliseconds.

    It reorders *seconds*.
    """
    keys = [latency_key(name, statistic) for statistic in STATISTICS]
    if not len(seconds):
        return dict.fromkeys(keys)
    mean, deviation = seconds.mean(), seconds.std()
    percentiles = np.percentile(seconds, PERCENTILES, overwrite_input=True)  # may be as long as the number of tokens
    values = [mean, percentiles[PERCENTILES.index(50)], deviation, *percentiles]
    return dict(zip(keys, (float(1e3 * value) for value in values), strict=True))


def good(history: History, limits: LatencyTargets) -> Bools:
    """Which requests completed within all *limits*, each within those of its workload where it has some.

    An output of one token has no TPOT to exceed.
    """
    requests, within = history.requests, history.requests.completed.copy()
    if limits.workloads:
        names, whole = requests.names("workload"), good(history, evolve(limits, workloads={}))
        for name, own in limits.workloads.items():
            whole = np.where(names == name, good(history, own), whole)
        return whole
    tpot = np.where(requests.output > 1, requests.tpot, 0.0)
    for limit, value in ((limits.ttft, requests.ttft), (limits.tpot, tpot), (limits.e2el, requests.e2e)):
        if limit is not None:
            within[within] = value[within] <= limit
    return within


def counts(served: RequestTotals, duration: float) -> Summary:
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


def throughput(served: RequestTotals, duration: float, limits: LatencyTargets) -> Summary:
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
    requests = history.requests
    return {key: value for name in LATENCIES
            for key, value in spread(name, requests.latencies(name, requests.completed)).items()}


def cache(work: StepTotals, served: RequestTotals) -> Summary:
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


def batches(work: StepTotals) -> Summary:
    """The number of steps, the size of their batches, what drafts brought, and which images were encoded."""
    return {
        "steps": work.steps,
        "mean_step_ms": ratio(1e3 * work.seconds, work.steps),
        "mean_batch_tokens": ratio(work.tokens, work.steps),
        "mean_batch_sequences": ratio(work.sequences, work.steps),
        **speculation(work),
        **({"images": work.images, "encoder_tokens": work.encoder_tokens} if work.images else {}),
    }


def speculation(work: StepTotals) -> Summary:
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


def utilisation(work: StepTotals, engines: Sequence[EngineBuilt], held: Floats, duration: float) -> Summary:
    """FLOP and bytes over what the GPUs could do at their peaks, in the whole run and while busy.

    Engines *held* so many GPU seconds each.
    """
    whole = float(held.sum())
    return {
        "gpus": int((floats(engines, "ranks") * floats(engines, "stages")).sum()),
        **_allocation(engines, whole, duration),
        "mfu": ratio(work.flops, float(floats(engines, "peak_flops") @ held)),
        "busy_mfu": ratio(work.flops, work.flops_possible),
        "mbu": ratio(work.bytes, float(floats(engines, "peak_bandwidth") @ held)),
        "busy_mbu": ratio(work.bytes, work.bytes_possible),
        "gpu_busy_share": ratio(work.gpu_seconds, whole),
        "host_share": ratio(work.host_seconds, whole),
    }


def _allocation(engines: Sequence[EngineBuilt], held: float, duration: float) -> Summary:
    """What GPUs were allocated to *engines*, where that changes."""
    if not is_scaled(engines):
        return {}
    from ksim.results.scaling import allocation

    return allocation(engines, held, duration)


def clocks(work: StepTotals) -> Summary:
    """SM clocks while the GPUs worked, and the share of that time below the boost clock."""
    return {
        "mean_sm_clock_mhz": ratio(1e-6 * work.cycles, work.known),
        "throttled_share": ratio(work.slowed, work.known),
        "above_limit_share": ratio(work.above, work.known),
        "max_step_watts": work.hottest or None,
    }


def drawn(work: StepTotals, served: RequestTotals, static: float, duration: float) -> Summary:
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
