"""Sentences about the pools of a run: who waits for whom, and what to change."""

from collections.abc import Iterator

import numpy as np

from ksim.report.wording import Insight, number, percent
from ksim.results.history import History
from ksim.results.link_use import busiest
from ksim.results.metrics import Summary

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
