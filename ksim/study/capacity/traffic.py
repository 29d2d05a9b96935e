"""The load of a capacity question: the requests of a replication, replicas of a scenario, and costs at a steady rate.

A replication has the same requests at any rate and for any set-up, only faster or slower.  These are common random
numbers (Law, Simulation Modeling and Analysis, section 11.2): rates and set-ups do not differ by the luck of their
requests.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from attrs import evolve, frozen

from ksim.flow.request import Request
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.rng import stream
from ksim.results.history import History
from ksim.results.measured import spent_dollars
from ksim.results.steps import Bools
from ksim.scenario.scenario import Scenario
from ksim.scenario.sizing import pack
from ksim.simulation.fleet import Fleet, unit
from ksim.simulation.pool import EnginePool
from ksim.specs.pools import PoolSettings
from ksim.workload.arrivals import Arrivals
from ksim.workload.replay import Replay, Workload
from ksim.workload.rows import follows

#: The shortest block of a trace that is resampled.
_SHORTEST_BLOCK = 8
#: The share of sessions, or requests, that a thinned trace keeps.
_KEPT = 0.5


@frozen
class Traffic:
    """The source of the requests of all replications: a synthetic workload, or a trace.

    `note` says how, for a trace.  `own_spread` is how uncertain the mean over all replications stays, however many
    there are, because a trace is itself but one draw: as a share of the variance between replications.
    """

    workload: Workload
    count: int
    note: str = ""
    own_spread: float = 0.0

    @classmethod
    def of(cls, workload: Workload, count: int, least: int = 1) -> "Traffic":
        """Traffic of *count* requests a replication; raises ConfigError for a workload that has no rate to change, and
        where a trace has fewer than the *least* requests."""
        if workload.max_concurrency is not None:
            raise ConfigError("workload.max_concurrency", "clients that wait for answers have no request rate of their"
                                                          " own; leave it out to ask for the highest rate")
        if workload.replay is None:
            _check_rates(workload)
            return cls(workload, count)
        assert workload.replay is not None, "a workload without synthetic requests replays a trace"
        if workload.may_abort:
            raise ConfigError("workload.replay", f"clients hang up in {workload.replay.path}, and the load of a"
                                                 " capacity has clients that stay; leave out its column of aborts")
        trace = _Trace.read(workload.replay)
        if len(trace.requests) < least:
            raise DataError(str(workload.replay.path), f"has {len(trace.requests):,} requests, and the targets need"
                                                       f" {least:,} or more; name a lower percentile, or replay more")
        if trace.coupled:
            count = min(count, len(trace.requests))
        return cls(workload, count, trace.note, trace.own_spread(count))

    def requests(self, rate: float, seed: int) -> Iterator[Request]:
        """The requests at this mean *rate*, in requests/s, or in sessions/s where there are sessions."""
        if self.workload.replay is not None:
            return _Trace.read(self.workload.replay).drawn(rate, seed, self.count)
        return self.at(rate).requests(seed)

    def _mix_at(self, rate: float) -> Workload:
        """The mix with as many requests of each workload as it has of the rate."""
        workload = self.workload
        total = sum(arrivals.rate or 0.0 for arrivals in _rates(workload).values())

        def many(arrivals: Arrivals | None) -> int | None:
            return max(1, round(self.count * arrivals.rate / total)) if arrivals and arrivals.rate else None

        parts = {name: evolve(part, synthetic=evolve(
            part.synthetic, arrivals=_scaled(part.synthetic.arrivals, rate / total),
            count=many(part.synthetic.arrivals))) for name, part in workload.mix.items() if part.synthetic}
        common = _scaled(workload.arrivals, rate / total) if workload.arrivals else None
        return evolve(workload, mix=parts, arrivals=common, count=many(workload.arrivals))

    def at(self, rate: float) -> Workload:
        """The workload at *rate*; of a trace, the whole as it is.  Of a mix it is that of all together, of which each
        workload keeps its share."""
        if self.workload.replay is not None:
            return evolve(self.workload, replay=evolve(self.workload.replay, rate=rate, time_scale=1.0))
        if self.workload.mix:
            return self._mix_at(rate)
        synthetic = self.workload.synthetic
        assert synthetic is not None, "a workload is synthetic or a replay"
        return evolve(self.workload, synthetic=evolve(synthetic, arrivals=evolve(synthetic.arrivals, rate=rate),
                                                      count=self.count))


def _rates(workload: Workload) -> Mapping[str, Arrivals]:
    """The arrivals that have rates of their own by their keys, which are synthetic."""
    found = {f"{key}.arrivals": load.arrivals for key, load in workload.syntheses.items()
             if load.arrivals.share is None}
    return {**({"workload.arrivals": workload.arrivals} if workload.arrivals else {}), **found}


def _scaled(arrivals: Arrivals, factor: float) -> Arrivals:
    """*arrivals* at so many times their rate; those that have a share follow it."""
    return evolve(arrivals, rate=factor * arrivals.rate) if arrivals.rate else arrivals


def _check_rates(workload: Workload) -> None:
    """Raise ConfigError for arrivals that have not one rate."""
    for key, arrivals in _rates(workload).items():
        if arrivals.changes or arrivals.spikes:
            what = "phases" if arrivals.phases else "tables" if arrivals.changes else "spikes"
            raise ConfigError(key, f"{what} have rates of their own; give one rate in place of them to ask for the"
                                   " highest")
        if arrivals.rate is None:
            raise ConfigError(key, "a burst has no rate; choose the process poisson, gamma or constant to ask for the"
                                   " highest rate")
    for key, source in workload.sources.items():
        if source.replay is not None:
            raise ConfigError(f"{key}.replay", "a trace in a mix cannot be sped up with the others; leave it out, or"
                                               " ask about it alone")


@frozen(eq=False)
class _Trace:
    """The requests of a trace, at arrivals that have a mean rate of 1/s."""

    requests: Sequence[Request]
    arrivals: Any

    @classmethod
    def read(cls, replay: Replay) -> "_Trace":
        """The trace of *replay*, which is read once in a process."""
        return _read(_Key(replay))

    @property
    def coupled(self) -> bool:
        """Whether some requests have to do with others: by shared prefixes, or sessions."""
        return any(request.chunks or request.session for request in self.requests)

    @property
    def block(self) -> int:
        """The number of consecutive requests that are drawn together: the root of all, so that bursts stay whole."""
        return max(_SHORTEST_BLOCK, round(math.sqrt(len(self.requests))))

    @property
    def note(self) -> str:
        """A note for readers: how replications are drawn."""
        if not self.coupled:
            return f"the trace is resampled in blocks of {self.block} consecutive requests"
        what = "sessions" if any(request.session for request in self.requests) else "requests"
        return (f"the trace is thinned to a random half of its {what}, as copies of requests would find each other's"
                " prompts in the cache")

    def own_spread(self, count: int) -> float:
        """The variance of a mean over the whole trace as a share of that between replications.

        If m requests are drawn from n, it is m / n.  A random half has as much variance about the whole as the
        whole has about the truth: McCarthy, "Replication: an approach to the analysis of data from complex surveys",
        1966.
        """
        return 1.0 if self.coupled else count / len(self.requests)

    def drawn(self, rate: float, seed: int, count: int) -> Iterator[Request]:
        """A replication of *count* requests; of a trace that is thinned, at most so many."""
        rng = stream(seed, "workload.resample")
        return self._thinned(rate, rng, count) if self.coupled else self._resampled(rate, rng, count)

    def _resampled(self, rate: float, rng: Any, count: int) -> Iterator[Request]:
        """Blocks of consecutive requests, each with the gap before it; from the last one, a block goes on at the first.

        Politis and Romano, "A circular block-resampling procedure for stationary data", 1992.
        """
        total, block = len(self.requests), self.block
        starts = rng.integers(total, size=-(-count // block))
        rows = ((starts[:, None] + np.arange(block)) % total).ravel()[:count]
        gaps = np.diff(self.arrivals, prepend=self.arrivals[0] - self.arrivals[-1] / max(1, total - 1))
        times = np.cumsum(gaps[rows])
        for number, (row, time) in enumerate(zip(rows.tolist(), ((times - times[0]) / rate).tolist(), strict=True)):
            yield evolve(self.requests[row], id=number, arrival=time)

    def _thinned(self, rate: float, rng: Any, count: int) -> Iterator[Request]:
        """A random half of the sessions, and of the requests that have none, at twice their rate."""
        owners = [request.session or index for index, request in enumerate(self.requests)]
        kept = dict(zip(dict.fromkeys(owners), rng.random(len(owners)) < _KEPT, strict=False))
        rows = [row for row, owner in enumerate(owners) if kept[owner]][:count]
        times = (self.arrivals[rows] - self.arrivals[rows[0]]) * _KEPT / rate if rows else self.arrivals[:0]
        for number, (row, time) in enumerate(zip(rows, times.tolist(), strict=True)):
            yield evolve(self.requests[row], id=number, arrival=time)


class _Key:
    """A replay as the key of a cache: by all that it says, and by when its file was written."""

    def __init__(self, replay: Replay) -> None:
        written = replay.path.stat().st_mtime_ns if replay.path.exists() else 0
        self.replay, self._text = replay, f"{replay!r} {written}"

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._text == other._text


@lru_cache(maxsize=4)
def _read(key: _Key) -> _Trace:
    replay = key.replay
    if replay.rate is None and not replay.clock():
        raise DataError(str(replay.path), "has no arrival times; name a rate in workload.replay for Poisson arrivals")
    requests = list(replay.requests(seed=0))
    own = 1 + sum(not follows(turn, before) for before, turn in pairwise(requests))
    arrivals = np.array([request.arrival for request in requests])
    if arrivals[-1] <= 0 or own < 2:
        raise DataError(str(replay.path), "all requests arrive at once, so there is no rate to change")
    return _Trace(requests, arrivals * ((own - 1) / arrivals[-1]))


#: The name of the pool that a scenario without pools becomes.
POOL = "engines"


def gpus_of(fleet: Fleet) -> int:
    """The number of GPUs that engines of *fleet* use; others of their nodes do not count."""
    return sum(pool.deployment.serve.gpus * len(pool.places) for pool in fleet.pools)


def replicated(scenario: Scenario, count: int) -> Scenario:
    """*scenario* with *count* times its engines, and as many nodes as they need at least.

    A scenario without pools becomes a pool of role "both".  Of one with pools, each pool has *count* times its
    replicas.  One replica is the scenario as it is.
    """
    if count == 1:
        return scenario
    pools = {name: _times(pool, count) for name, pool in scenario.pools.items()} or {
        POOL: PoolSettings(role="both", replicas=count)}
    fleet = Fleet.of(scenario)
    shared = [pool for pool in fleet.pools if not pool.name or scenario.pools[pool.name].nodes is None]
    needed = max((_nodes(pools, count) for pools in _by_system(shared).values()), default=0)
    there = max((pool.deployment.system.nodes for pool in shared), default=0)
    return evolve(scenario, pools=pools, nodes=needed if needed > there else scenario.nodes)


def _times(pool: PoolSettings, count: int) -> PoolSettings:
    return evolve(pool, replicas=count * pool.replicas, nodes=None if pool.nodes is None else count * pool.nodes)


def _by_system(pools: Sequence[EnginePool]) -> Mapping[tuple[str | Choice | None, str | None], list[EnginePool]]:
    """*pools* by the system whose nodes they share."""
    systems: dict[tuple[str | Choice | None, str | None], list[EnginePool]] = {}
    for pool in pools:
        systems.setdefault((pool.deployment.scenario.gpu, pool.deployment.scenario.system), []).append(pool)
    return systems


def _nodes(pools: Sequence[EnginePool], count: int) -> int:
    """The nodes that *count* times the engines of *pools* need, packed in their order."""
    node = pools[0].deployment.system.gpus_per_node
    sizes = [size for pool in pools for size in _sizes(pool, node, count)]
    return -(-pack(sizes, node)[1] // node)


def _sizes(pool: EnginePool, node: int, count: int) -> list[int]:
    """The GPUs that lie side by side, for each such group of engines of *count* times a *pool*."""
    together = unit(pool.deployment, node)
    return [together * pool.deployment.serve.gpus] * (count * len(pool.places) // together)


def numbers(history: History, fleet: Fleet, good: Bools) -> Mapping[str, float]:
    """The numbers of a run, for the time in which its requests arrived: what its load takes to drain is left out.

    Dynamic joules are those of all its work; static ones, and GPUs' dollars, are those of that time.
    """
    requests, gpus = history.requests, history.gpus
    done = requests.completed
    outputs = float(requests.output[done].sum())
    tokens = float(requests.prompt[done].sum()) + outputs
    count, last = len(requests), float(requests.arrival[-1])
    seconds = last * count / max(1, count - 1)
    dynamic = float(history.steps.joules.sum())
    static = history.static_joules * seconds / history.duration if history.duration else 0.0
    millions, of_outputs = max(tokens, 1.0) / 1e6, max(outputs, 1.0) / 1e6
    totals = {"gpus": float(gpus), "unserved_share": 1 - float(done.mean()),
              "request_goodput": float(good.sum()) / seconds,
              "total_token_throughput": tokens / seconds,
              "output_throughput": outputs / seconds,
              "joules_per_output_token": 1e-6 * (dynamic + static) / of_outputs,
              "joules_per_million_tokens": (dynamic + static) / millions}
    dollars = spent_dollars(history, dynamic + static, seconds, fleet.rates, fleet.pool_rates)
    return totals if dollars is None else {**totals, "dollars_per_million_output_tokens": dollars / of_outputs,
                                           "usd_per_million_tokens": dollars / millions}
