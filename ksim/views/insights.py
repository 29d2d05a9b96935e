"""Sentences about what to know of a run before trusting or changing it.

Sentences about the pools of a run: who waits for whom, and what to change.
"""

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

import numpy as np

from ksim.flow.events import GONE
from ksim.flow.steps import BOUNDS
from ksim.results.history import History
from ksim.results.kernels import KernelUsage
from ksim.results.numbers import Summary
from ksim.results.requests import FAILED, REJECTED, STATUS
from ksim.results.series import busiest
from ksim.results.steps import Bools, Floats
from ksim.views.wording import UP, Insight, growing, number, outwards, percent

#: From this share of its time on, a pool has nothing to do often enough to say so.
_IDLE = 0.25
#: A pool whose GPUs are idle for so much more of the time than another pool's has too many engines.
_APART = 0.3
#: Transfers take so many times as long as alone before links are worth a word; shares of a latency that are.
_CONTENDED, _WORTH = 1.2, 0.1


def fleet_insights(history: History, summary: Summary) -> Iterator[Insight]:
    """The insights into the pools of a run and what goes between them."""
    pools = summary["pools"]
    if summary["num_kv_expired_reqs"]:
        yield Insight(
            f"The leases of {number(summary['num_kv_expired_reqs'])} requests ended before a decode engine had read"
            " their blocks; a longer lease, or more decode engines, would help.", True)
    yield from _idle(pools)
    yield from _host(pools)
    if len(history.splits):
        yield from _transfers(history)
        yield from _room(history)
        yield from _held(pools)


def _idle(pools: dict[str, Summary]) -> Iterator[Insight]:
    """An insight into pools that have little to do, beside the one that has most."""
    idle = {name: 1 - (pool["gpu_busy_share"] or 0.0) - (pool["host_share"] or 0.0) for name, pool in pools.items()}
    least = min(idle, key=lambda name: idle[name])
    for name, share in idle.items():
        if share - idle[least] >= _APART:
            yield Insight(
                f"The GPUs of pool {name} have nothing to do {percent(share, 0)} of the run, those of pool {least}"
                f" {percent(idle[least], 0)}: {_fewer(pools[name])}.")
        elif share >= _IDLE:
            yield Insight(f"The GPUs of pool {name} have nothing to do {percent(share, 0)} of the run: there is room"
                          " for more load.")


def _fewer(pool: Summary) -> str:
    role = "" if pool["role"] == "both" else f"{pool['role']} "
    return (f"fewer {role}engines would do" if pool["engines"] > 1 else
            f"a smaller {role}engine would do, or more of the work could be given to it")


def _host(pools: dict[str, Summary]) -> Iterator[Insight]:
    for name, pool in pools.items():
        if (pool["host_share"] or 0.0) >= 0.1:
            yield Insight(f"The GPUs of pool {name} wait for the CPU {percent(pool['host_share'], 0)} of the run.")


def _transfers(history: History) -> Iterator[Insight]:
    """An insight into transfers that get in each other's way, and at which link."""
    splits = history.splits
    known = ~np.isnan(splits.loaded)
    took, alone = (splits.loaded - splits.began)[known].sum(), splits.alone[known].sum()
    if alone > 0 and took >= _CONTENDED * alone:
        links = busiest(history, 1)
        where = f"; the busiest is {links[0].name}, in use to {percent(links[0].mean, 0)} on average" if links else ""
        yield Insight(f"KV transfers wait for links: they take {number(float(took / alone))} times as long as on links"
                      f" of their own{where}.")


def _room(history: History) -> Iterator[Insight]:
    """An insight into requests whose KV has no room where they are decoded."""
    splits, requests = history.splits, history.requests
    done = requests.completed[splits.row] & ~np.isnan(splits.admitted)
    begin, end = splits.waiting_for_room
    waited, latency = (end - begin)[done].sum(), requests.e2e[splits.row][done].sum()
    if latency > 0 and waited >= _WORTH * latency:
        yield Insight(
            f"Requests wait {percent(float(waited / latency), 0)} of their time for room on a decode engine: more"
            " decode engines, or more KV cache there, would help.")


def _held(pools: dict[str, Summary]) -> Iterator[Insight]:
    for name, pool in pools.items():
        if (pool["kv_cache_held_mean"] or 0.0) >= _WORTH:
            yield Insight(f"Blocks that decode engines have yet to read fill {percent(pool['kv_cache_held_mean'], 0)}"
                          f" of the KV cache of pool {name}.")


#: Served requests/s that are at least this share of those offered need no word.
_CLOSE = 0.97
_MEANING = {
    "memory": "they wait for weights and KV cache, not for arithmetic",
    "compute": "arithmetic, not memory, sets the pace",
    "launch": "kernels too small to fill the GPU, so larger batches cost next to nothing",
    "communication": "fewer ranks per model, or faster links, would help",
}


def insights(history: History, usage: KernelUsage, summary: Summary) -> list[Insight]:
    """The insights into a run, warnings first."""
    found = [
        *_warnings(history, summary),
        *step_bounds(history, usage).values(),
        *(fleet_insights(history, summary) if history.pools else _waiting(summary)),
        *_cache(summary),
        *_late_end(history, summary),
        *_gateway(summary),
        *_peaks(history),
    ]
    return sorted(found, key=lambda insight: not insight.warning)


def summary_insights(summary: Summary) -> list[Insight]:
    """The insights that the numbers of a run alone tell, for runs of which nothing else is known; warnings first."""
    told = [*_growing(summary), *_aborted(summary), *_unfinished(summary),
            *(() if "pools" in summary else _waiting(summary)), *_cache(summary), *_gateway(summary)]
    return sorted(told, key=lambda insight: not insight.warning)


def _warnings(history: History, summary: Summary) -> Iterator[Insight]:
    yield from _growing(summary)
    yield from _turned_away(history, REJECTED, "rejected")
    yield from _turned_away(history, FAILED, "ended by an error")
    yield from _aborted(summary)
    yield from _unfinished(summary)
    yield from _clocks(history)


def _growing(summary: Summary) -> Iterator[Insight]:
    if summary["saturated"]:
        where = "the queue" if "queue" in growing(summary) else "the time at the gateway"
        yield Insight(
            f"The queue kept growing: {number(summary['waiting_at_last_arrival'])} requests with"
            f" {number(summary['waiting_tokens_at_last_arrival'])} prompt tokens waited when the last one arrived. This"
            f" load is more than the system can serve{_sustained(summary)}; TTFT, {where} and E2EL grow with"
            " the length of the run.", True)


def _late_end(history: History, summary: Summary) -> Iterator[Insight]:
    """Why fewer requests/s are served than offered by a run that kept up: its last answer took until long after."""
    requests, served, offered = history.requests, summary["request_throughput"], summary["offered_request_rate"]
    if offered is None or summary["saturated"] or not requests.completed.all():
        return
    late, before = float(requests.last_token.max() - requests.arrival[-1]), float(requests.arrival[0])
    if served < _CLOSE * offered and late > before:
        yield Insight(f"The system kept up: requests/s ({number(served)}) are fewer than offered ({number(offered)}) as"
                      f" they count the whole run, and its last answer ended {number(late)} s after the last request"
                      " arrived.")


def _gateway(summary: Summary) -> Iterator[Insight]:
    """How many requests a gateway held, and how often their clients had to try again."""
    if summary.get("held_requests"):
        yield Insight(f"{_requests(summary['held_requests'])} held at the gateway, {number(summary['mean_held_ms'])} ms"
                      f" on average and {number(summary['max_held_ms'], UP)} ms at most; TTFT counts that.")
    if summary.get("retries"):
        yield Insight(f"Clients tried {number(summary['retries'])} times again after a refusal; TTFT counts from the"
                      " first attempt.")


def _unfinished(summary: Summary) -> Iterator[Insight]:
    if summary["unfinished"]:
        left = _requests(summary["unfinished"])
        yield Insight(f"{left} unfinished at the end of the run; no latency counts them.", True)


def _aborted(summary: Summary) -> Iterator[Insight]:
    if number_of := summary.get("aborted"):
        yield Insight(f"{_requests(number_of)} aborted, as their clients hung up; no latency counts them.", True)


def _turned_away(history: History, status: str, ended: str) -> Iterator[Insight]:
    """A warning if requests have this *status*, with the most common reason."""
    requests = history.requests
    rows = [row for row, reason in requests.reasons.items()
            if STATUS[requests.status_numbers[row]] == status and not reason.startswith(GONE)]
    reasons = Counter(requests.reasons[row] for row in rows)
    if reasons:
        reason, _ = min(reasons.items(), key=lambda item: (-item[1], item[0]))
        yield Insight(f"{_requests(len(rows))} {ended}, most often with: {reason}.", True)


def _clocks(history: History) -> Iterator[Insight]:
    """A warning if clocks fell below the range that was measured."""
    steps = history.steps
    least = steps.per_engine("known_clock")[steps.stage_step_rows]
    seconds, below = steps.stage_steps.seconds * steps.stage_ranks, steps.stage_steps.scaling.clock < least * (1 - 1e-6)
    if (share := float(seconds[below].sum()) / max(float(seconds.sum()), 1e-300)) >= 0.01:
        gpu = history.engines[int(steps.engine[steps.stage_step_rows[below][0]])].gpu
        yield Insight(
            f"{percent(share, 0)} of the GPU time ran at SM clocks below"
            f" {number(1e-6 * float(least[below].min()), UP)} MHz, under which nothing was measured on"
            f" {gpu}: what lower clocks cost and save is extrapolated.", True)


def _peaks(history: History) -> Iterator[Insight]:
    """An insight into why some steps draw more than the limit."""
    watts = history.steps.watts_above_limit
    if len(watts):
        yield Insight(
            f"{percent(len(watts) / len(history.steps))} of the steps draw more than the power limit, up to"
            f" {number(float(watts.max()), UP)} W per GPU: a GPU may for some tens of milliseconds, until the limit"
            " lowers its clock, so the limit holds on average and not for each step.")


def _sustained(summary: Summary) -> str:
    rate, low, high = (summary[f"sustainable_request_rate{side}"] for side in ("", "_low", "_high"))
    if rate is None:
        return ""
    return f", which is about {number(rate)} requests/s ({outwards(low, high)} at 90 %)"


def _requests(count: int) -> str:
    return "1 request was" if count == 1 else f"{count:,} requests were"


def step_bounds(history: History, usage: KernelUsage) -> dict[str, Insight]:
    """Insights into the bound that takes most GPU time of `decode` steps, and of steps with tokens of a `prefill`."""
    names, seconds = usage.seconds_by(attrgetter("bound"))
    with_prompts = history.steps.prefills > 0
    kinds = {"decode": ("Decode steps", ~with_prompts), "prefill": ("Steps with prompt tokens", with_prompts)}
    return {kind: insight for kind, (title, which) in kinds.items()
            for insight in _bound_of(title, names, seconds[which].sum(axis=0), which)}


def _bound_of(title: str, names: list[str], seconds: Floats, which: Bools) -> Iterator[Insight]:
    if not which.any() or seconds.sum() <= 0:
        return
    share, name = max((float(s / seconds.sum()), n) for s, n in zip(seconds, names, strict=True))
    if share >= 0.5 and name in BOUNDS:
        yield Insight(f"{title} are {name}-bound for {percent(share, 0)} of their GPU time: {_MEANING[name]}.")


def _waiting(summary: Summary) -> Iterator[Insight]:
    host, busy = summary["host_share"] or 0.0, summary["gpu_busy_share"] or 0.0
    if host >= 0.1:
        yield Insight(f"The GPUs wait for the CPU {percent(host, 0)} of the run.")
    if summary["steps"] and 1 - busy - host >= 0.25:
        idle = percent(1 - busy - host, 0)
        yield Insight(f"The GPUs have nothing to do {idle} of the run: there is room for more load.")


def _cache(summary: Summary) -> Iterator[Insight]:
    peak = summary["kv_cache_usage_peak"]
    share = percent(peak, 0, UP)
    if summary["preemptions"]:
        often = "1 preemption" if summary["preemptions"] == 1 else f"{number(summary['preemptions'])} preemptions"
        again = number(summary["recomputed_tokens"])
        yield Insight(f"The KV cache ran full: {often} cost {again} tokens computed again.")
    elif peak is not None and peak < 0.5:
        yield Insight(f"The KV cache is never above {share} full.")
    elif peak is not None and peak >= 0.95:
        yield Insight(f"The KV cache is up to {share} full: requests wait for blocks before they wait for GPUs.")
