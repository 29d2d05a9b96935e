"""Runs that are too long to be kept: rows are written during the run and forgotten, and sums and distributions stay.

docs/glossary.md says what such a run leaves out.
"""

from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from attrs import Factory, define, evolve, field
from pyarrow import parquet

from ksim.flow.events import (
    Arrived,
    Chosen,
    Copied,
    Decoded,
    Emitted,
    EngineBuilt,
    Event,
    Failed,
    Finished,
    LinkUsed,
    Prefilled,
    RanksMet,
    Rejected,
    Scaled,
    StepBlock,
    Stepped,
)
from ksim.flow.log import Columns, Log, only
from ksim.results.arrow import flags
from ksim.results.energy import ENERGY_KEYS, energy_interval
from ksim.results.features import Copies, GatewayTotals, adapter_summary, tier_summary
from ksim.results.groups import GroupTotals, RequestGroups, with_groups
from ksim.results.history import KINDS, History, allocated_gpu_seconds, is_scaled, static_joules
from ksim.results.measured import Refusals, request_table, routing_rows, step_table
from ksim.results.metrics import (
    INTERVAL_KEYS,
    RequestTotals,
    StepTotals,
    batches,
    cache,
    clocks,
    counts,
    drawn,
    good,
    throughput,
    utilisation,
)
from ksim.results.numbers import (
    GROUP_LATENCIES,
    LATENCIES,
    PERCENTILES,
    POOL_LATENCIES,
    STATISTICS,
    LatencyTargets,
    Summary,
    latency_key,
)
from ksim.results.pools import EngineRequests, PoolTotals, of_fleet, of_pools, steps_by_pool
from ksim.results.requests import Requests
from ksim.results.series import SATURATION_KEYS, Series
from ksim.results.steps import Bools, Floats, Ints, floats, ratio, sums

if TYPE_CHECKING:
    from ksim.results.ranks import RankTotals

#: The largest relative error of a percentile.
RESOLUTION = 1e-3
#: The range is 1 ns to 30 years, in steps of twice the resolution; smaller values count as 0.
_LEAST, _MOST = 1e-9, 1e9
_STEP = log(1.0 + 2.0 * RESOLUTION)
_BINS = int(log(_MOST / _LEAST) / _STEP) + 2


@define(eq=False)
class LogHistogram:
    """Values in seconds, by their logarithm.  Count, mean, standard deviation, minimum and maximum are exact."""

    _bins: Ints = field(factory=lambda: np.zeros(_BINS, np.int64))
    count: int = 0
    mean: float = 0.0
    least: float = np.inf
    most: float = -np.inf
    _squares: float = 0.0

    def add(self, values: Floats) -> None:
        """Add *values*, none of them nan or negative."""
        if not len(values):
            return
        number, mean, total = len(values), float(values.mean()), self.count + len(values)
        off = mean - self.mean
        self._squares += float(((values - mean) ** 2).sum()) + off**2 * self.count * number / total
        self.mean, self.count = self.mean + off * number / total, total
        self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))
        with np.errstate(divide="ignore"):
            places = np.clip(np.log(values / _LEAST) / _STEP + 1.0, 0, _BINS - 1)
        self._bins += np.bincount(places.astype(np.int64), minlength=_BINS)

    def percentile(self, percent: float) -> float:
        """Linear interpolation between values, each known to the resolution."""
        index = (self.count - 1) * percent / 100
        below, above = self._value(int(index)), self._value(min(int(index) + 1, self.count - 1))
        return below + (index - int(index)) * (above - below)

    def _value(self, index: int) -> float:
        """The value at this rank."""
        number = int(np.searchsorted(np.cumsum(self._bins), index, side="right"))
        middle = _LEAST * exp(_STEP * (number - 0.5)) if number else 0.0
        return min(max(middle, self.least), self.most)

    def spread(self, name: str) -> Summary:
        """The numbers of `metrics.spread`, in milliseconds."""
        keys = [latency_key(name, statistic) for statistic in STATISTICS]
        if not self.count:
            return dict.fromkeys(keys)
        values = [self.mean, self.percentile(50), (self._squares / self.count) ** 0.5,
                  *map(self.percentile, PERCENTILES)]
        return dict(zip(keys, (1e3 * value for value in values), strict=True))


@define(eq=False)
class Concurrency:
    """The most completed requests in flight at once.  It keeps requests that others may still overlap."""

    peak: int = 0
    _level: float = 0.0
    _times: Floats = field(factory=lambda: np.zeros(0))
    _changes: Floats = field(factory=lambda: np.zeros(0))

    def add(self, requests: Requests, done: Bools, until: float) -> None:
        """Add the completed requests *done*; no later one will have arrived before *until*."""
        count = int(done.sum())
        times = np.concatenate([self._times, requests.arrival[done], requests.last_token[done]])
        changes = np.concatenate([self._changes, np.ones(count), -np.ones(count)])
        sure = times < until
        series = Series.of_changes(times[sure], changes[sure])
        self.peak = max(self.peak, round(self._level + series.peak))
        self._level += float(changes[sure].sum())
        self._times, self._changes = times[~sure], changes[~sure]


@define(eq=False)
class Seconds:
    """Output tokens of completed requests in each second that has any, counted from the first arrival."""

    begin: float | None = None
    _first: float = np.inf
    _seconds: Ints = field(factory=lambda: np.zeros(0, np.int64))
    _counts: Ints = field(factory=lambda: np.zeros(0, np.int64))

    def add(self, requests: Requests, done: Bools) -> None:
        """Add the completed requests *done*."""
        accepted = requests.arrival[np.isnan(requests.rejected)]
        if self.begin is None and len(accepted):
            self.begin = float(accepted[0])
        if not done.any() or self.begin is None:
            return
        self._first = min(self._first, float(requests.arrival[done].min()))
        seconds, counts = requests.per_second(done, self.begin)
        self._seconds, which = np.unique(np.concatenate([self._seconds, seconds]), return_inverse=True)
        self._counts = sums(which, np.concatenate([self._counts, counts]), len(self._seconds)).astype(np.int64)

    @property
    def most(self) -> float | None:
        """Tokens in the fullest second; None if the first request did not complete."""
        if not len(self._counts):
            return 0.0
        return float(self._counts.max()) if self._first == self.begin else None


@define(eq=False)
class RunningPoolTotals:
    """The totals of each pool so far."""

    latencies: list[dict[str, LogHistogram]]
    works: list[StepTotals] = field(factory=list)
    totals: PoolTotals | None = None

    @classmethod
    def empty(cls, pools: int) -> "RunningPoolTotals":
        return cls([{name: LogHistogram() for name in POOL_LATENCIES} for _ in range(pools)])

    def add(self, history: History, ended: Bools, stepped: Bools, duration: float) -> None:
        """Add the requests that have *ended* and the steps in *stepped*, of a run of this *duration* so far."""
        legs, works = EngineRequests.of(history, ended), steps_by_pool(history, stepped)
        totals = PoolTotals.of(history, ended, legs, duration)
        self.works = [new + old for new, old in zip(works, self.works, strict=True)] if self.works else works
        self.totals = self.totals + totals if self.totals else totals
        for index, latencies in enumerate(self.latencies):
            for name, values in legs.latencies(index).items():
                latencies[name].add(values)

    def summaries(self, engines: Sequence[EngineBuilt], duration: float) -> dict[str, Summary]:
        """The numbers of `pool_summaries`."""
        assert self.totals is not None, "a run ends with an entry of the rest of it"
        spreads = [{key: value for name, histogram in latencies.items()
                    for key, value in histogram.spread(name).items()} for latencies in self.latencies]
        return dict(of_pools(engines, self.works, self.totals, spreads, duration))


@define(eq=False)
class StreamedGroup(GroupTotals):
    """The totals of the requests of a workload, a model or a tenant, with the distributions of their latencies."""

    histograms: dict[str, LogHistogram] = field(factory=lambda: {name: LogHistogram() for name in GROUP_LATENCIES})

    def take(self, name: str, seconds: Floats) -> None:
        self.histograms[name].add(seconds)

    def spread(self, name: str) -> Summary:
        return self.histograms[name].spread(name)


@define(eq=False)
class RunningTotals:
    """The totals of the parts of a run so far."""

    limits: LatencyTargets
    duration: float = 0.0
    work: StepTotals | None = None
    served: RequestTotals = Factory(RequestTotals)
    in_flight: Concurrency = Factory(Concurrency)
    seconds: Seconds = Factory(Seconds)
    latencies: dict[str, LogHistogram] = field(factory=lambda: {name: LogHistogram() for name in LATENCIES})
    pools: RunningPoolTotals | None = None
    gateway: GatewayTotals | None = None
    groups: RequestGroups | None = None
    _flown: float = 0.0

    def add(self, history: History, ended: Bools, stepped: Bools, until: float) -> None:
        """Add the requests that have *ended* and the steps in *stepped*.

        All others that complete will have arrived at *until* or later.
        """
        requests, done = history.requests, history.requests.completed & ended
        self.duration = max(self.duration, history.duration)
        self.work = StepTotals.of(history, stepped) + self.work if self.work else StepTotals.of(history, stepped)
        self.served += RequestTotals.of(history, ended, good(history, self.limits))
        self.in_flight.add(requests, done, until)
        self.seconds.add(requests, done)
        self._flown += float(requests.e2e[done].sum())
        for name in LATENCIES:
            self.latencies[name].add(requests.latencies(name, done))
        if history.log.gated:
            self.gateway = self.gateway or GatewayTotals()
            self.gateway.add(requests, ended)
        if history.log.mixed:
            self.groups = self.groups or RequestGroups(self.limits, StreamedGroup)
            self.groups.add(history, ended)
        if history.pools:
            self.pools = self.pools or RunningPoolTotals.empty(len(history.pools))
            self.pools.add(history, ended, stepped, self.duration)

    def summary(self, engines: Sequence[EngineBuilt]) -> Summary:
        """The numbers of summary.json; None for those that need more than sums."""
        work, duration = self.work, self.duration
        assert work is not None, "a run ends with an entry of the rest of it"
        last = np.maximum(0.0, duration - work.ended - floats(engines, "sleep_after"))
        held = allocated_gpu_seconds(engines, duration)
        static = static_joules(engines, held, work.asleep + last)
        spreads = [latency.spread(name) for name, latency in self.latencies.items()]
        summary = {
            **counts(self.served, duration),
            **throughput(self.served, duration, self.limits),
            "max_output_tokens_per_s": self.seconds.most,
            "max_concurrent_requests": self.in_flight.peak,
            "mean_concurrent_requests": ratio(self._flown, duration),
            **{key: value for spread in spreads for key, value in spread.items()},
            **dict.fromkeys(INTERVAL_KEYS),
            "extrapolated_share": ratio(work.extrapolated, work.gpu_seconds),
            **cache(work, self.served),
            **batches(work),
            **utilisation(work, engines, held, duration),
            **drawn(work, self.served, static, duration),
            **clocks(work),
            **dict.fromkeys(SATURATION_KEYS),
            **dict.fromkeys(ENERGY_KEYS),
            **energy_interval(engines, static, work.joules, work.reach),
            "idle_energy_joules": static - work.static,
            **(self.gateway.summary() if self.gateway else {}),
        }
        if self.pools:
            summary |= of_fleet(self.pools.summaries(engines, duration), summary)
        return with_groups(summary, self.groups.summary(duration)) if self.groups else summary


Events = dict[type[Event], Columns]

#: The number of ended requests, or of new steps, that are written at once.
_REQUESTS, _STEPS = 1 << 12, 1 << 14
#: The number of steps whose ranks are written at once: there are many rows of each.
_MET = 1 << 8


class ParquetLog(Log):
    """A log that writes requests.parquet and steps.parquet during the run.

    `Finished`, `Rejected` and `Failed` are the last events of a request, but that its blocks may be `Released` later.
    If they come before the steps that sampled its tokens, they wait for these.  The sink keeps requests that have not
    ended, and steps since the first admission of any of them.  It forgets at once how much links are used, and writes
    ranks.parquet without keeping timelines.
    """

    def __init__(self, directory: Path, limits: LatencyTargets) -> None:
        super().__init__()
        self._tally, self._directory = RunningTotals(limits), directory
        self._writers: dict[str, parquet.ParquetWriter] = {}
        self.refusals = Refusals()
        self._ended = self._stepped = self._chosen = 0
        self._copies = Copies()
        self._met: RankTotals | None = None
        self._steps_met = 0
        #: How many steps of each engine are written.
        self._written: dict[int, int] = {}

    def add(self, event: Event) -> None:
        """Take one event."""
        kind = type(event)
        if kind is LinkUsed:
            return
        if isinstance(event, RanksMet):
            self._meet(event)
            return
        if isinstance(event, Copied):
            self._copies.add(event)
            if event.target != "gpu":  # a request may have ended before its KV is stored
                return
        if isinstance(event, Chosen):
            self._choose(event)
            return
        if kind is Stepped:
            self._write_many()
            self._stepped += 1
        elif kind is Arrived:
            self._write_many()
        elif kind is Finished or kind is Rejected or kind is Failed:
            self._ended += 1
            if isinstance(event, Rejected):
                self.refusals.add(event.reason)
        super().add(event)

    def extend(self, kind: type[Event], columns: Columns) -> None:
        """Take events of a *kind*; how links are used is not kept."""
        if kind is not LinkUsed:
            super().extend(kind, columns)

    def record(self, block: StepBlock) -> None:
        """Record consecutive steps of an engine; write if there is much to write."""
        self._write_many()
        self._stepped += len(block)
        super().record(block)

    def _choose(self, event: Chosen) -> None:
        """Take a choice of a router, which nothing later changes; write if there are many."""
        super().add(event)
        self._chosen += 1
        if self._chosen == _REQUESTS:
            self._write_choices()

    def _write_choices(self) -> None:
        if self._chosen:
            self._put("routing", routing_rows(self.columns(Chosen)))
            self._blocks[Chosen], self._chosen = [], 0

    def _meet(self, event: RanksMet) -> None:
        """Take a step of ranks, which nothing later changes; write if there are many."""
        super().add(evolve(event, timeline=None))
        self._steps_met += 1
        if self._steps_met == _MET:
            self._write_ranks()

    def _write_ranks(self) -> None:
        if self._steps_met:
            from ksim.results.ranks import RankTotals, rank_rows

            columns, self._met = self.columns(RanksMet), self._met or RankTotals()
            self._met.add(columns)
            self._put("ranks", rank_rows(columns))
            self._blocks[RanksMet], self._steps_met = [], 0

    def __enter__(self) -> "ParquetLog":
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def summary(self) -> Summary:
        """Write what is left, unfinished requests included, and return the numbers of the run."""
        self._write(at_end=True)
        self._write_choices()
        self._write_ranks()
        engines = sorted(self.engines, key=lambda built: built.engine)
        gpus = sum(built.ranks * built.stages for built in engines)
        ranks = self._met.summary(gpus, self._tally.duration) if self._met else {}
        return self._scaled(self._tally.summary(engines) | adapter_summary(self) | tier_summary(engines, self._copies)
                            | ranks)

    def _scaled(self, summary: Summary) -> Summary:
        """*summary*, with decisions of autoscalers where replicas come and go; writes those, and the replicas."""
        if not is_scaled(self.engines):
            return summary
        from ksim.results.scaling import decisions, replica_table, scaling_rows

        self._put("scaling", scaling_rows(self.columns(Scaled)))
        self._put("replicas", replica_table(self.engines, summary["duration"]))
        return decisions(summary, self)

    def _write_many(self) -> None:
        """Write if there is much to write; called before the next event, when all events so far are complete."""
        if self._ended >= _REQUESTS or self._stepped >= _STEPS:
            self._write()

    def _write(self, at_end: bool = False) -> None:
        self._ended = self._stepped = 0
        steps = {block.engine: block.first + len(block) for block in self.step_blocks}
        now, later = self._split(steps)
        log = Log.of_columns(self.engines, now, self._step_blocks, self.before)
        log.gated, log.mixed = self.gated, self.mixed
        history = History(log)
        requests = history.requests
        ended = np.full(len(requests), at_end) | _over(history)
        numbers = np.array([self._written.get(built.engine, 0) for built in history.engines], np.int64)
        stepped = history.steps.index >= numbers[history.steps.engine]
        self._put("requests", request_table(history, None).filter(flags(ended)))
        self._put("steps", step_table(history).filter(flags(stepped)))
        self._tally.add(history, ended, stepped, np.inf if at_end else _first_arrival(requests, ended))
        self._written |= steps
        self._forget(history, ended, now, later)

    def _put(self, name: str, table: pa.Table) -> None:
        if name not in self._writers:
            self._writers[name] = parquet.ParquetWriter(
                self._directory / f"{name}.parquet", table.schema, compression="zstd", use_dictionary=False)
        if len(table):
            self._writers[name].write_table(table)

    def _split(self, steps: Mapping[int, int]) -> tuple[Events, Events]:
        """The events that are complete after so many *steps* of each engine, and those that wait for more steps."""
        prefilled = self._early(Prefilled, "step", steps)
        late = np.append(self._early(Emitted, "last", steps), prefilled)
        now: Events = {kind: self.columns(kind) for kind in KINDS}
        later: Events = {}
        for kind, ids in ((Emitted, late), (Decoded, late), (Finished, late), (Failed, late), (Prefilled, prefilled)):
            waits = np.isin(now[kind]["request_id"], ids)
            if waits.any():
                now[kind], later[kind] = only(now[kind], ~waits), only(now[kind], waits)
        return now, later

    def _early(self, kind: type[Event], name: str, steps: Mapping[int, int]) -> Ints:
        """The requests of the events that name a step which is yet to come."""
        events, early = self.columns(kind), np.zeros(0, np.int64)
        for engine in np.unique(events["engine"]).tolist():
            which = (events["engine"] == engine) & (events[name] >= steps.get(engine, 0))
            early = np.append(early, events["request_id"][which])
        return early

    def _forget(self, history: History, ended: Bools, now: Events, later: Events) -> None:
        """Keep only what is still needed of the events written *now*, and those for *later*."""
        requests = history.requests
        for kind, columns in now.items():
            rows = np.arange(len(requests)) if kind is Arrived else requests.rows(columns["request_id"])
            self._blocks[kind] = [only(columns, ~ended[rows]), *([later[kind]] if kind in later else [])]
        kept = []
        for block in self._step_blocks:
            index = int(history.steps.places(np.array([block.engine]))[0])
            splits = history.splits
            since = np.append(requests.admitted[~ended & (requests.engine == index)],
                              splits.prefilling[~ended[splits.row] & (splits.source == index)])
            if block.scheduled[-1] >= np.nanmin(since, initial=np.inf):
                kept.append(block)
            else:
                ended_by = max(self.before.get(block.engine, 0.0), float(block.end.max()))
                self.before[block.engine] = ended_by
        self._step_blocks = kept


def _over(history: History) -> Bools:
    """The requests that have ended and hold no blocks of a prefill engine any more."""
    ended, splits = history.requests.ended.copy(), history.splits
    ended[splits.row[~np.isnan(splits.prefilled) & ~(splits.released <= history.duration)]] = False
    return ended


def _first_arrival(requests: Requests, ended: Bools) -> float:
    """The arrival of the first request that has not ended, or of the next one to come."""
    return float(min(requests.arrival[~ended].min(initial=np.inf), requests.arrival.max(initial=-np.inf)))
