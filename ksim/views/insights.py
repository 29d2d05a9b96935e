"""Sentences about runs: what to know of one before trusting or changing it, and why two of them differ."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from attrs import frozen

from ksim.flow.events import GONE
from ksim.flow.steps import BOUNDS
from ksim.results.attribution import groups, members
from ksim.results.history import History
from ksim.results.kernels import KernelUsage
from ksim.results.numbers import RANK_WAITS, Summary, number_of
from ksim.results.series import busiest
from ksim.results.steps import Bools, Floats
from ksim.views.run_directory import Whole
from ksim.views.wording import UP, Insight, growing, number, outwards, percent

#: From this share of its time on, a pool has nothing to do often enough to say so.
_IDLE = 0.25
#: A pool whose GPUs are idle for so much more of the time than another pool's has too many engines.
_APART = 0.3
#: Transfers take so many times as long as alone before links are worth a word; shares of a latency, and of all changes
#: between two runs, that are.
_CONTENDED, _WORTH = 1.2, 0.1
#: GPUs that wait for others for so much of a run are worth a word.
_UNEVEN = 0.03


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
        *_ranks(summary),
        *_cache(summary),
        *_late_end(history, summary),
        *_gateway(summary),
        *_peaks(history),
    ]
    return sorted(found, key=lambda insight: not insight.warning)


def summary_insights(summary: Summary) -> list[Insight]:
    """The insights that the numbers of a run alone tell, for runs of which nothing else is known; warnings first."""
    told = [*_growing(summary), *_aborted(summary), *_unfinished(summary),
            *(() if "pools" in summary else _waiting(summary)), *_ranks(summary), *_cache(summary),
            *_gateway(summary)]
    return sorted(told, key=lambda insight: not insight.warning)


def _warnings(history: History, summary: Summary) -> Iterator[Insight]:
    yield from _growing(summary)
    yield from _turned_away(history, "rejected", "rejected")
    yield from _turned_away(history, "failed", "ended by an error")
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
        yield Insight(f"Clients tried {number(summary['retries'])} times again after a refusal or a replica's end;"
                      " TTFT counts from the first attempt.")


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
    number_of_status = requests.STATUS.index(status)
    rows = [row for row, reason in requests.reasons.items()
            if requests.status_numbers[row] == number_of_status and not reason.startswith(GONE)]
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


def _ranks(summary: Summary) -> Iterator[Insight]:
    """How long GPUs wait for others, and mostly why."""
    if (share := summary.get("rank_wait_share") or 0.0) >= _UNEVEN:
        key = max(RANK_WAITS.values(), key=lambda key: summary[key])
        yield Insight(f"GPUs wait for others {percent(share, 0)} of the run, most of it for"
                      f" {number_of(key).short.strip()}: `ksim ranks` says which, and what that costs.")


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


#: The statistics that are explained, and how they are called.
_EXPLAINED = {"mean_ttft": "TTFT", "mean_tpot": "TPOT"}


@frozen
class RoleEngines:
    """One kind of work in a run: its engines, the GPUs of each, and the shares of their time and KV cache in use."""

    engines: int
    gpus: int
    busy: float
    kv: float

    @classmethod
    def of(cls, run: Whole, role: str) -> "RoleEngines | None":
        """Those that prefill or decode in *run*; in a run without pools, all engines do both."""
        pools = [pool for pool in run.pools.values() if pool["role"] in (role, "both")]
        if run.pools and pools:
            gpus, engines = (sum(pool[key] for pool in pools) for key in ("gpus", "engines"))
            busy, kv = (sum((pool[key] or 0.0) * pool["gpus"] for pool in pools) / gpus
                        for key in ("gpu_busy_share", "kv_cache_usage_mean"))
            return cls(engines, gpus // engines, busy, kv)
        settings = run.settings or {}
        each = int(settings.get("serve.tensor_parallel_size", 1)) * int(settings.get("serve.pipeline_parallel_size", 1))
        gpus = run.summary.get("gpus") or each
        return cls(max(gpus // each, 1), each, run.summary.get("gpu_busy_share") or 0.0,
                   run.summary.get("kv_cache_usage_mean") or 0.0)

    def __str__(self) -> str:
        return f"{self.engines} engine{'s' if self.engines > 1 else ''} of {_gpus(self)}"


@frozen
class _Engines:
    """Who prefills, and who decodes, in the first and in the second run."""

    prefill: tuple[RoleEngines, RoleEngines]
    decode: tuple[RoleEngines, RoleEngines]
    runs: tuple[Whole, Whole]


def reasons(one: Whole, other: Whole, names: Sequence[str], pairs: Mapping[str, tuple[Floats, Floats]],
            ) -> Iterator[str]:
    """Sentences on what makes TTFT and TPOT differ between two runs of which one has pools, largest change first."""
    if not (one.pools or other.pools):
        return
    prefill, decode = ([RoleEngines.of(run, role) for run in (one, other)] for role in ("prefill", "decode"))
    if None in (*prefill, *decode):
        return
    engines = _Engines((prefill[0], prefill[1]), (decode[0], decode[1]), (one, other))  # type: ignore[arg-type]
    for key, title in _EXPLAINED.items():
        if key in pairs:
            before, after = pairs[key]
            yield from _of_metric(title, engines, names, 1e3 * (after - before))
    yield from _shares_busy(engines)


def _of_metric(title: str, engines: _Engines, names: Sequence[str], change: Floats) -> Iterator[str]:
    by_group = {group: float(sum(change[names.index(name)] for name in members(group, names)))
                for group in groups(names)}
    whole = sum(map(abs, by_group.values()))
    for group, milliseconds in sorted(by_group.items(), key=lambda item: -abs(item[1])):
        if abs(milliseconds) >= _WORTH * whole > 0 and (why := _WHY.get(group)):
            sign = "longer" if milliseconds > 0 else "shorter"
            yield f"{title}, {group} {number(abs(milliseconds))} ms {sign}: {why(engines, milliseconds > 0)}"


def _prefill(engines: _Engines, longer: bool) -> str:
    first, second = engines.prefill
    return _sizes("a prompt is computed by", first, second)


def _decode(engines: _Engines, longer: bool) -> str:
    first, second = engines.decode
    return f"{_sizes('a token is computed by', first, second)}, and batches have {_batch(engines)}"


def _sizes(what: str, first: RoleEngines, second: RoleEngines) -> str:
    if first.gpus == second.gpus:
        return f"{what} {_gpus(second)} in both runs"
    return f"{what} {_gpus(second)} in the second run, by {_gpus(first)} in the first"


def _gpus(engines: RoleEngines) -> str:
    return f"{engines.gpus} GPU{'s' if engines.gpus > 1 else ''}"


def _batch(engines: _Engines) -> str:
    found = [_sequences(run) for run in engines.runs]
    return f"{number(found[1])} sequences on average, not {number(found[0])}"


def _sequences(run: Whole) -> float | None:
    pools = [pool for pool in run.pools.values() if pool["role"] != "prefill"]
    value: float | None = (pools[0] if pools else run.summary).get("mean_batch_sequences")
    return value


def _queue(engines: _Engines, longer: bool) -> str:
    first, second = engines.prefill
    return (f"prompts wait for {second}, busy {percent(second.busy, 0)} of the time, and not for {first}, busy"
            f" {percent(first.busy, 0)}")


def _others(engines: _Engines, longer: bool) -> str:
    split = [any(pool["role"] == "prefill" for pool in run.pools.values()) for run in engines.runs]
    if split == [False, True] and not longer:
        return "other requests' prompts are computed elsewhere, and delay no decode"
    if split == [True, False] and longer:
        return "other requests' prompts are computed in between"
    return _sizes("prompts of others are computed by", *engines.prefill)


def _lack_of_room(engines: _Engines, longer: bool) -> str:
    first, second = (percent(role.kv, 0) for role in engines.decode)
    return f"the KV cache of engines that decode is {second} full on average, and {first} in the first run"


def _moved(engines: _Engines, longer: bool) -> str:
    counts = [run.summary.get("num_transfers") or 0 for run in engines.runs]
    sizes = [(run.summary.get("bytes_transferred") or 0.0) / count if count else 0.0
             for run, count in zip(engines.runs, counts, strict=True)]
    first, second = (f"{number(size / 1e6)} MB" for size in sizes)
    return f"a transfer moves {second} of KV in the second run, {first} in the first"


def _hop(engines: _Engines, longer: bool) -> str:
    return "a split request goes through the router and a front end twice"


def _next_step(engines: _Engines, longer: bool) -> str:
    return "a request whose KV has arrived waits until the decode engine schedules its next step"


def _communication(engines: _Engines, longer: bool) -> str:
    first, second = (_gpus(side) for side in engines.decode)
    return f"an engine has {second} in the second run, {first} in the first, which exchange data in every layer"


def _two_hosts(engines: _Engines, longer: bool) -> str:
    return "the hosts of two engines schedule a split request and take in its steps"


_WHY: dict[str, Callable[[_Engines, bool], str]] = {
    "queue": _queue, "queue: rest": _queue, "own prefill": _prefill, "others' prefill": _others, "decode": _decode,
    "communication": _communication, "host": _two_hosts,
    "hop": _hop, "wait for room": _lack_of_room, "KV transfer": _moved,
    "KV contention": lambda engines, longer: f"transfers share links; {_moved(engines, longer)}",
    "next step": _next_step,
}


def _shares_busy(engines: _Engines) -> Iterator[str]:
    """What GPUs do while they wait for each other's work."""
    for which, run in zip(("first", "second"), engines.runs, strict=True):
        if run.pools:
            busy: dict[str, Any] = {name: percent(pool["gpu_busy_share"], 0) for name, pool in run.pools.items()}
            told = ", ".join(f"{name} {share}" for name, share in busy.items())
            yield f"GPUs busy in the {which} run: {told}, all {percent(run.summary['gpu_busy_share'], 0)}"
        else:
            yield f"GPUs busy in the {which} run: {percent(run.summary['gpu_busy_share'], 0)}"
