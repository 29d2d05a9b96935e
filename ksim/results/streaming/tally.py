"""The summary of a run of which only sums and distributions are kept."""

from collections.abc import Sequence
from math import exp, log

import numpy as np
from attrs import Factory, define, field

from ksim.flow.events import EngineBuilt
from ksim.results import saturation, uncertainty
from ksim.results.arrays import Bools, Floats, Ints, floats, ratio, sums
from ksim.results.attribution.energy import ENERGY_KEYS, energy_interval
from ksim.results.gateway import GatewayTotals
from ksim.results.history import History, static_joules
from ksim.results.metrics import (
    LATENCIES,
    PERCENTILES,
    LatencyTargets,
    Summary,
    batches,
    cache,
    clocks,
    counts,
    drawn,
    good,
    throughput,
    utilisation,
)
from ksim.results.pools import POOL_LATENCIES, Legs, PoolTotals, of_fleet, of_pools, steps_by_pool
from ksim.results.requests import Requests
from ksim.results.series import Series
from ksim.results.totals import Served, Work

#: The largest relative error of a percentile.
RESOLUTION = 1e-3
#: The range is 1 ns to 30 years, in steps of twice the resolution; smaller values count as 0.
_LEAST, _MOST = 1e-9, 1e9
_STEP = log(1.0 + 2.0 * RESOLUTION)
_BINS = int(log(_MOST / _LEAST) / _STEP) + 2


@define(eq=False)
class Histogram:
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
        place = (self.count - 1) * percent / 100
        below, above = self._value(int(place)), self._value(min(int(place) + 1, self.count - 1))
        return below + (place - int(place)) * (above - below)

    def _value(self, place: int) -> float:
        """The value at this rank."""
        number = int(np.searchsorted(np.cumsum(self._bins), place, side="right"))
        middle = _LEAST * exp(_STEP * (number - 0.5)) if number else 0.0
        return min(max(middle, self.least), self.most)

    def spread(self, name: str) -> Summary:
        """The numbers of `metrics.spread`, in milliseconds."""
        keys = [f"{statistic}_{name}_ms" for statistic in ("mean", "median", "std", *(f"p{q}" for q in PERCENTILES))]
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
class PoolTally:
    """The totals of each pool so far."""

    latencies: list[dict[str, Histogram]]
    works: list[Work] = field(factory=list)
    totals: PoolTotals | None = None

    @classmethod
    def empty(cls, pools: int) -> "PoolTally":
        return cls([{name: Histogram() for name in POOL_LATENCIES} for _ in range(pools)])

    def add(self, history: History, ended: Bools, stepped: Bools, duration: float) -> None:
        """Add the requests that have *ended* and the steps in *stepped*, of a run of this *duration* so far."""
        legs, works = Legs.of(history, ended), steps_by_pool(history, stepped)
        totals = PoolTotals.of(history, ended, legs, duration)
        self.works = [new + old for new, old in zip(works, self.works, strict=True)] if self.works else works
        self.totals = self.totals + totals if self.totals else totals
        for place, latencies in enumerate(self.latencies):
            for name, values in legs.latencies(place).items():
                latencies[name].add(values)

    def summaries(self, engines: Sequence[EngineBuilt], duration: float) -> dict[str, Summary]:
        """The numbers of `pool_summaries`."""
        assert self.totals is not None, "a run ends with an entry of the rest of it"
        spreads = [{key: value for name, histogram in latencies.items()
                    for key, value in histogram.spread(name).items()} for latencies in self.latencies]
        return dict(of_pools(engines, self.works, self.totals, spreads, duration))


@define(eq=False)
class Tally:
    """The totals of the parts of a run so far."""

    limits: LatencyTargets
    duration: float = 0.0
    work: Work | None = None
    served: Served = Factory(Served)
    in_flight: Concurrency = Factory(Concurrency)
    seconds: Seconds = Factory(Seconds)
    latencies: dict[str, Histogram] = field(factory=lambda: {name: Histogram() for name in LATENCIES})
    pools: PoolTally | None = None
    gateway: GatewayTotals | None = None
    _flown: float = 0.0

    def add(self, history: History, ended: Bools, stepped: Bools, until: float) -> None:
        """Add the requests that have *ended* and the steps in *stepped*.

        All others that complete will have arrived at *until* or later.
        """
        requests, done = history.requests, history.requests.completed & ended
        self.duration = max(self.duration, history.duration)
        self.work = Work.of(history, stepped) + self.work if self.work else Work.of(history, stepped)
        self.served += Served.of(history, ended, good(history, self.limits))
        self.in_flight.add(requests, done, until)
        self.seconds.add(requests, done)
        self._flown += float(requests.e2e[done].sum())
        found = {"ttft": requests.ttft[done], "tpot": requests.tpot[done & (requests.output > 1)],
                 "itl": requests.gaps_of(done), "e2el": requests.e2e[done], "queue": requests.queue[done]}
        for name, values in found.items():
            self.latencies[name].add(values)
        if history.log.gated:
            self.gateway = self.gateway or GatewayTotals()
            self.gateway.add(requests, ended)
        if history.pools:
            self.pools = self.pools or PoolTally.empty(len(history.pools))
            self.pools.add(history, ended, stepped, self.duration)

    def summary(self, engines: Sequence[EngineBuilt]) -> Summary:
        """The numbers of summary.json; None for those that need more than sums."""
        work, duration = self.work, self.duration
        assert work is not None, "a run ends with an entry of the rest of it"
        last = np.maximum(0.0, duration - work.ended - floats(engines, "sleep_after"))
        static = static_joules(engines, work.asleep + last, duration)
        spreads = [latency.spread(name) for name, latency in self.latencies.items()]
        summary = {
            **counts(self.served, duration),
            **throughput(self.served, duration, self.limits),
            "max_output_tokens_per_s": self.seconds.most,
            "max_concurrent_requests": self.in_flight.peak,
            "mean_concurrent_requests": ratio(self._flown, duration),
            **{key: value for spread in spreads for key, value in spread.items()},
            **dict.fromkeys(uncertainty.KEYS),
            "extrapolated_share": ratio(work.extrapolated, work.gpu_seconds),
            **cache(work, self.served),
            **batches(work),
            **utilisation(work, engines, duration),
            **drawn(work, self.served, static, duration),
            **clocks(work),
            **dict.fromkeys(saturation.KEYS),
            **dict.fromkeys(ENERGY_KEYS),
            **energy_interval(engines, static, work.joules, work.reach),
            "idle_energy_joules": static - work.static,
            **(self.gateway.summary() if self.gateway else {}),
        }
        return {**summary, **of_fleet(self.pools.summaries(engines, duration), summary)} if self.pools else summary
