"""The numbers of each pool of a fleet: its work, requests, latencies and KV transfers.

docs/glossary.md defines every key.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from attrs import define, frozen

from ksim.flow.events import EngineBuilt, Failed, Finished
from ksim.flow.log import only
from ksim.results.history import History, allocated_gpu_seconds, pools_of, static_joules
from ksim.results.metrics import Added, StepTotals, aborted, batches, clocks, spread, utilisation
from ksim.results.numbers import POOL_LATENCIES, Summary
from ksim.results.steps import Bools, Floats, Ints, floats, ratio, sums


@frozen(eq=False)
class EngineRequests:
    """What engines did for requests that completed: columns with one row for each engine that a request had.

    `pool` is the place of the engine's pool in `History.pools`.  Latencies are nan where there are none.
    """

    pool: Ints
    prompt: Ints
    ttft: Floats
    tpot: Floats
    queue: Floats
    xfer_time: Floats
    room: Floats
    found: Floats
    looked_up: Floats

    @classmethod
    def of(cls, history: History, ended: Bools) -> "EngineRequests":
        """The legs of those requests in *ended* that completed."""
        done = history.requests.completed & ended
        parts = (_whole(history, done), _prefills(history, done), _decodes(history, done))
        columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return cls(*columns)

    def latencies(self, pool: int) -> dict[str, Floats]:
        """The latencies of one pool, those that are known."""
        mine = self.pool == pool
        columns = {name: getattr(self, name)[mine] for name in POOL_LATENCIES}
        return {name: column[~np.isnan(column)] for name, column in columns.items()}


Columns = tuple[Ints | Floats, ...]


def _whole(history: History, done: Bools) -> Columns:
    """Requests that one engine prefilled and decoded."""
    requests = history.requests
    rows = np.flatnonzero(done & (requests.prefill_engine < 0))
    nothing = np.full(len(rows), np.nan)
    return (history.pool[requests.engine[rows]], requests.prompt[rows], requests.ttft[rows], requests.tpot[rows],
            requests.queue[rows], nothing, nothing, requests.cached[rows], requests.known[rows])


def _prefills(history: History, done: Bools) -> Columns:
    """The first legs of split requests: the time to the router's answer is that to the first token there."""
    requests, splits = history.requests, history.splits
    which = np.flatnonzero(done[splits.row] & ~np.isnan(splits.prefilled))
    rows, nothing = splits.row[which], np.full(len(which), np.nan)
    routed = splits.routed[which]
    return (history.pool[splits.source[which]], requests.prompt[rows], splits.answered[which] - routed, nothing,
            requests.queue[rows], nothing, nothing, requests.cached[rows], requests.known[rows])


def _decodes(history: History, done: Bools) -> Columns:
    """The second legs of split requests, whose time begins when the router sent them there."""
    requests, splits = history.requests, history.splits
    which = np.flatnonzero(done[splits.row] & ~np.isnan(splits.admitted))
    rows, sent, nobodys = splits.row[which], splits.sent[which], np.zeros(len(which), np.int64)
    begin, until = (times[which] for times in splits.waiting_for_room)
    first, several = requests.first[rows] + splits.handed[which], requests.output[rows] > splits.handed[which]
    ttft = np.full(len(which), np.nan)
    ttft[several] = requests.came(first[several]) - sent[several]
    moved = np.nan_to_num(splits.tokens[which])
    return (history.pool[splits.target[which]], nobodys, ttft, requests.tpot[rows],
            (splits.admitted - splits.queued)[which], (splits.loaded - splits.began)[which], until - begin,
            np.maximum(splits.cached[which] - moved, 0.0), requests.prompt[rows].astype(np.float64))


@define(eq=False)
class PoolTotals(Added):
    """Totals of the requests of each pool: columns with one number for each.

    Tokens are those of completed requests.  `found` of them, of those `looked_up`, were in the pool's own cache.
    Engines of the pool held blocks for `held_seconds`, block by block, of which the leases of `expired` requests ended.
    """

    completed: Floats
    prompts: Floats
    outputs: Floats
    found: Floats
    looked_up: Floats
    preemptions: Floats
    sent: Floats
    received: Floats
    transfers: Floats
    failed: Floats
    expired: Floats
    held_seconds: Floats

    @classmethod
    def of(cls, history: History, ended: Bools, legs: EngineRequests, duration: float) -> "PoolTotals":
        """The totals of the requests in *ended*, with these *legs*, in a run of this *duration* so far."""
        def added(pools: Ints, amounts: Floats | Ints | Bools) -> Floats:
            return sums(pools, amounts, len(history.pools))

        requests, pool = history.requests, history.pool
        output, whose = _outputs(history, requests.completed & ended)
        preempted = requests.preempted
        own = ended[requests.rows(preempted["request_id"])]
        places = history.steps.places(preempted["engine"][own])
        return cls(
            completed=added(legs.pool, np.ones(len(legs.pool))), prompts=added(legs.pool, legs.prompt),
            outputs=added(whose, output), found=added(legs.pool, np.nan_to_num(legs.found)),
            looked_up=added(legs.pool, np.nan_to_num(legs.looked_up)),
            preemptions=added(pool[places], np.ones(len(places))) + added(*_beside(history, ended)),
            **_moved(history, ended, duration))


def _beside(history: History, ended: Bools) -> tuple[Ints, Ints]:
    """Pools, and preemptions of sequences that events do not tell of one by one."""
    events = history.events[Finished]
    own = only(events, ended[history.requests.rows(events["request_id"])])
    return history.pool[history.steps.places(own["engine"])], own["preemptions"]


def _outputs(history: History, done: Bools) -> tuple[Ints, Ints]:
    """The tokens of each run of tokens of the requests in *done*, and the place of the pool that sampled them."""
    runs = history.requests.runs
    which = done[runs.row]
    return runs.counts[which], history.pool[history.steps.engine[runs.first[which]]]


def _moved(history: History, ended: Bools, duration: float) -> dict[str, Floats]:
    """What the transfers of the requests in *ended* moved, and how long their blocks were held."""
    def added(pools: Ints, amounts: Floats | Bools) -> Floats:
        return sums(pools, np.nan_to_num(amounts.astype(np.float64)), len(history.pools))

    splits, pool = history.splits, history.pool
    which = ended[splits.row]
    source, target = pool[splits.source[which]], pool[splits.target[which]]
    held = np.fmin(splits.released, duration) - splits.prefilled
    return {"sent": added(source, splits.bytes[which]), "received": added(target, splits.bytes[which]),
            "transfers": added(target, ~np.isnan(splits.loaded[which])), "failed": _failed(history, ended),
            "expired": added(source, splits.expired[which]),
            "held_seconds": added(source, np.maximum(held * splits.held_blocks, 0.0)[which])}


def _failed(history: History, ended: Bools) -> Floats:
    """The requests in *ended* that failed and were not aborted, by pool."""
    failures = history.events[Failed]
    own = (ended & ~aborted(history.requests))[history.requests.rows(failures["request_id"])]
    pools = history.pool[history.steps.places(failures["engine"][own])]
    return sums(pools, np.ones(len(pools)), len(history.pools))


def steps_by_pool(history: History, which: Bools) -> list[StepTotals]:
    """The totals of the steps in *which*, pool by pool."""
    pool = history.pool[history.steps.engine]
    return [StepTotals.of(history, which & (pool == index)) for index in range(len(history.pools))]


def pool_summaries(history: History) -> dict[str, Summary]:
    """The numbers of each pool by its name; docs/glossary.md defines them."""
    everything = np.ones(len(history.requests), dtype=np.bool_)
    
    legs = EngineRequests.of(history, everything)
    works = steps_by_pool(history, np.ones(len(history.steps), dtype=np.bool_))
    totals = PoolTotals.of(history, everything, legs, history.duration)
    spreads = [{key: value for name, seconds in legs.latencies(index).items()
                for key, value in spread(name, seconds).items()} for index in range(len(history.pools))]
    return dict(of_pools(history.engines, works, totals, spreads, history.duration))


def of_pools(engines: Sequence[EngineBuilt], works: Sequence[StepTotals], totals: PoolTotals,
             spreads: Sequence[Summary], duration: float) -> Iterator[tuple[str, Summary]]:
    """The summary of each pool: what it is, what it did, its *spreads* of latencies, and what it drew."""
    held = allocated_gpu_seconds(engines, duration)
    for index, name in enumerate(pools_of(engines)):
        own = [number for number, built in enumerate(engines) if built.pool == name]
        work, built = works[index], [engines[number] for number in own]
        static = _static(engines, own, held[own], work, duration)
        yield name, {"role": built[0].role, "gpu": built[0].gpu, "engines": len(built),
                     **_rates(totals, index, duration), **spreads[index],
                     **_cache(work, totals, index, built, duration), **batches(work),
                     **utilisation(work, built, held[own], duration),
                     **_energy(work, totals, index, static, duration),
                     **clocks(work)}


def _rates(totals: PoolTotals, index: int, duration: float) -> Summary:
    completed, prompts, outputs = (int(column[index]) for column in (totals.completed, totals.prompts, totals.outputs))
    return {"completed": completed, "num_failed": int(totals.failed[index]), "total_input_tokens": prompts,
            "total_output_tokens": outputs, "request_throughput": ratio(completed, duration),
            "input_throughput": ratio(prompts, duration), "output_throughput": ratio(outputs, duration)}


def _cache(work: StepTotals, totals: PoolTotals, index: int, engines: Sequence[EngineBuilt],
           duration: float) -> Summary:
    blocks = float(floats(engines, "kv_blocks").sum())
    return {"prefix_cache_hit_rate": ratio(totals.found[index], totals.looked_up[index]),
            "preemptions": int(totals.preemptions[index]),
            "kv_cache_usage_mean": ratio(work.kv_seconds, work.seconds),
            "kv_cache_usage_peak": work.kv_peak if work.steps else None,
            "kv_cache_held_mean": ratio(totals.held_seconds[index], blocks * duration),
            "bytes_sent": float(totals.sent[index]), "bytes_received": float(totals.received[index]),
            "num_transfers": int(totals.transfers[index]), "num_kv_expired_reqs": int(totals.expired[index])}


def _energy(work: StepTotals, totals: PoolTotals, index: int, static: float, duration: float) -> Summary:
    joules = static + work.joules
    return {"energy_joules": joules, "static_energy_joules": static, "dynamic_energy_joules": work.joules,
            "average_watts": ratio(joules, duration), "joules_per_input_token": ratio(joules, totals.prompts[index]),
            "joules_per_output_token": ratio(joules, totals.outputs[index])}


def _static(engines: Sequence[EngineBuilt], own: Sequence[int], held: Floats, work: StepTotals,
            duration: float) -> float:
    """The static joules of the engines at the places *own*, which *held* so many GPU seconds."""
    last = np.maximum(0.0, duration - work.ended - floats(engines, "sleep_after"))
    return static_joules([engines[number] for number in own], held, (work.asleep + last)[list(own)])


def of_fleet(pools: dict[str, Summary], summary: Summary) -> Summary:
    """The numbers of a whole fleet that a run without pools does not have."""
    gpus = summary.get("mean_gpus") or summary["gpus"]
    goodput = summary["request_goodput"]
    return {"request_goodput_per_gpu": None if goodput is None else ratio(goodput, gpus),
            "output_throughput_per_gpu": ratio(summary["output_throughput"] or 0.0, gpus),
            "num_transfers": sum(pool["num_transfers"] for pool in pools.values()),
            "bytes_transferred": float(sum(pool["bytes_received"] for pool in pools.values())),
            "num_kv_expired_reqs": sum(pool["num_kv_expired_reqs"] for pool in pools.values()),
            "pools": pools}
