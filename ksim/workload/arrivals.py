"""Arrivals: the processes that draw them, at rates that may change with time, and the statistics of given ones.

Arrivals with a rate that changes come from those with a rate of one by a change of time: the n-th of these, at u,
arrives when the integral of the rate has come to u.  A Poisson process stays one (Lewis and Shedler, "Simulation of
nonhomogeneous Poisson processes by thinning", 1979, section 2), and the arrivals to expect in any time are the integral
over it.  Spikes come on top, as arrivals of their own.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice, pairwise, repeat, takewhile
from math import inf, nan, sqrt
from pathlib import Path
from typing import ClassVar

import attrs
import numpy as np
from attrs import define, field, frozen
from attrs.validators import and_, ge, gt, in_, le, optional
from numpy.typing import NDArray

from ksim.workload.rates import Phase, RateAt, Rates, Spike, check_order, phases_between, phases_of, scaled

__all__ = ["Arrivals", "ArrivalSummary", "ArrivalTally"]


_BLOCK = 4096
#: More than any run has.
MOST_ARRIVALS = 10**9


@frozen
class Arrivals:
    """Arrival times as `vllm bench serve` draws them; the first is always 0 s.

    "poisson", "gamma" and "constant" have a `rate` in requests/s; "burst" sends
    all requests at once.  `burstiness` is the shape of "gamma": the standard
    deviation of the gaps is 1 / sqrt(burstiness) of their mean, so 1 is Poisson and
    less is burstier.  `exact` stretches the times so that the last arrival fits the
    rate, as `vllm bench serve` does; without it, the rate of a short run varies.

    With `phases`, `points` or a `path` the rate changes with time, and gaps are those of `process` at a rate of one,
    whose times are changed (see `ksim.workload.arrivals`).  Arrivals end with these.
    """

    #: A list in place of the table is that of its phases.
    listed: ClassVar[str] = "phases"

    process: str = field(default="poisson", validator=in_(("poisson", "gamma", "constant", "burst")))
    """Distribution of the gaps; burst sends all at once. Source: vllm bench serve."""
    rate: float | None = field(default=None, validator=optional(and_(gt(0), le(1e9))))
    """Mean rate; burst has none. Rates of `points` or a `path` are scaled to it. Unit: requests/s. Default: required
    except for burst and with `phases`, `points` or `path`. Example: 10.0."""
    burstiness: float | None = field(default=None, validator=optional(and_(ge(1e-3), le(1e6))))
    """Shape of gamma: 1 is Poisson, less is burstier. Unit: ratio. Default: required for gamma. Source: vllm bench
    serve --burstiness. Example: 0.5."""
    exact: bool = False
    """Stretch the times so that the last arrival fits the rate, as `vllm bench serve` does."""
    phases: tuple[Phase, ...] = ()
    """Rates one after the other, in place of `rate`; a list of them may stand in place of the whole table.
    Example: [{rate = 15, for = "90 s"}, {rate = 2, to = 10, for = "60 s"}]."""
    points: tuple[RateAt, ...] = ()
    """A table of rates over time, in place of `phases`: the rate is linear from each point to the next, and arrivals
    end at the last. Example: [{at = 0, rate = 2}, {at = "28800 s", rate = 12}, {at = "86400 s", rate = 2}]."""
    path: Path | None = field(default=None, converter=attrs.converters.optional(Path))
    """The same in a file of CSV with the columns time, in s, and rate; relative to the scenario. Default: none.
    Example: "week.csv"."""
    steps: bool = False
    """Let each rate of `points` or `path` last until the next one, the last as long as the one before it: a row for
    each hour of a day or a week."""
    repeat: bool = False
    """Begin again after the last phase or point, until there are `count` requests."""
    spikes: tuple[Spike, ...] = ()
    """Arrivals on top of all others, each for a while. Example: [{at = "600 s", rate = 30.0, for = "60 s"}]."""
    share: float | None = field(default=None, validator=optional(and_(ge(1e-9), le(1e9))))
    """In a mix of workloads, how much of the arrivals of the whole `workload.arrivals` is of this one: its share over
    the sum of all shares, in place of a rate. Unit: none. Default: arrivals of its own. Example: 3.0."""

    def __attrs_post_init__(self) -> None:
        if given := [key for key, is_set in (("phases", self.phases), ("points", self.points), ("path", self.path))
                     if is_set]:
            self._check_rates(given)
        elif self.share is not None:
            self._check_share()
        elif self.repeat or self.steps:
            raise ValueError(f"{'repeat is of phases, points' if self.repeat else 'steps are of points'} or a path;"
                             f" leave it out, or give some")
        elif (self.rate is None) != (self.process == "burst"):
            raise ValueError(f"process {self.process!r} takes {'no' if self.rate else 'a'} rate")
        if (self.burstiness is None) == (self.process == "gamma"):
            raise ValueError(f"process {self.process!r} takes {'no' if self.burstiness else 'a'} burstiness")
        if self.spikes and (self.exact or self.process == "burst"):
            raise ValueError(f"spikes are of a rate that changes; leave out {'exact' if self.exact else 'the burst'}")
        if self.spikes and self.path is None and self.changes and not self.repeat:
            self._check_spikes(self.rates.length)

    def _check_share(self) -> None:
        """Raise ValueError for a share beside what says when requests arrive."""
        if others := [each.name for each in attrs.fields(Arrivals)
                      if each.name != "share" and getattr(self, each.name) != each.default]:
            raise ValueError(f"a share is of arrivals that workload.arrivals describes; leave out {others[0]}")

    def _check_rates(self, given: Sequence[str]) -> None:
        """Raise ValueError where *given* keys that say a rate which changes contradict others."""
        options = {given[-1]: len(given) > 1, "share": self.share is not None,
                   "rate": given[0] == "phases" and self.rate is not None,
                   "steps": given[0] == "phases" and self.steps, "exact": self.exact,
                   "process = 'burst'": self.process == "burst"}
        if contradicted := [name for name, is_set in options.items() if is_set]:
            raise ValueError(f"{given[0]} {'says' if given[0] == 'path' else 'say'} when requests arrive; leave out"
                             f" {contradicted[0]}")
        for place, (before, point) in enumerate(pairwise(self.points), start=1):
            try:
                check_order(before, point, self.steps)
            except ValueError as error:
                raise ValueError(f"points[{place}] {error}") from None
        if self.path is None:
            self._check_phases()

    def _check_phases(self) -> None:
        try:
            self.rates.check()
        except ValueError as error:
            raise ValueError(f"points {error}" if self.points else str(error)) from None

    def _check_spikes(self, length: float) -> None:
        for place, spike in enumerate(self.spikes):
            if spike.at >= length:
                raise ValueError(f"spikes[{place}] is at {spike.at:g} s, and arrivals end after {length:g} s")

    @property
    def changes(self) -> bool:
        """Whether there is a table of rates, or there are phases."""
        return bool(self.phases or self.points or self.path)

    @property
    def rates(self) -> Rates:
        """The rate over time, without spikes; it must be one that `changes`.

        Raises DataError for a file of rates that cannot be read.
        """
        if self.phases:
            return Rates(self.phases, self.repeat)
        made = (phases_between(self.points, self.steps) if self.path is None else
                phases_of(self.path, self.steps))
        return Rates(scaled(made, self.rate), self.repeat)

    @property
    def expected(self) -> float:
        """The expected number of arrivals, with the first one; infinite where they do not end."""
        if not self.changes or self.repeat:
            return inf
        return 1 + self.rates.expected + sum(spike.rate * spike.for_ for spike in self.spikes)

    def expected_by(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """The arrivals to expect up to each of *times*, in seconds, with those of spikes, once through."""
        spikes = (Rates(spike.phases).expected_by(times) for spike in self.spikes)
        return sum(spikes, start=self.rates.expected_by(times))

    @property
    def mean(self) -> float | None:
        """The mean rate in requests/s, without spikes; None for a burst."""
        return self.rates.mean if self.changes else self.rate

    def times(self, rng: "np.random.Generator", count: int) -> Iterator[float]:
        """Yield *count* times in seconds, ascending from 0; raises DataError for a file of rates that cannot be read.
        """
        if not self.spikes:
            return self._steady(rng, count)
        return islice(self._with_spikes(rng), count)

    def _steady(self, rng: "np.random.Generator", count: int) -> Iterator[float]:
        """The arrivals without those of spikes."""
        if self.process == "burst":
            return repeat(0.0, count)
        if self.changes and not self.rates.constant:
            return islice(self._changing(rng), count)
        drawn = islice(self._stretched(rng, count) if self.exact else self._endless(rng), count)
        return takewhile(lambda time: time < self.rates.length, drawn) if self.changes and not self.repeat else drawn

    def _with_spikes(self, rng: "np.random.Generator") -> Iterator[float]:
        """Those of spikes come from streams of their own, so that all others stay where they are."""
        if self.changes and not self.repeat:
            self._check_spikes(self.rates.length)
        alone = [islice(self._changing(own, Rates(spike.phases)), 1, None)
                 for spike, own in zip(self.spikes, rng.spawn(len(self.spikes)), strict=True)]
        return merge(self._steady(rng, MOST_ARRIVALS), *alone)

    def _changing(self, rng: "np.random.Generator", rates: Rates | None = None) -> Iterator[float]:
        """The times of a rate that changes, from those of a rate of one."""
        rates, now = rates or self.rates, 0.0
        yield now
        unit = Arrivals(self.process, 1.0, self.burstiness)
        while True:
            ones = now + np.cumsum(unit._gaps(rng, _BLOCK))
            times = rates.times(ones)
            yield from times.tolist()
            if len(times) < len(ones):
                return
            now = ones[-1]

    def _endless(self, rng: "np.random.Generator") -> Iterator[float]:
        now = 0.0
        yield now
        while True:
            times = now + np.cumsum(self._gaps(rng, _BLOCK))
            yield from times.tolist()
            now = times[-1]

    def _stretched(self, rng: "np.random.Generator", count: int) -> Iterator[float]:
        times = np.cumsum(self._gaps(rng, count - 1))
        if count > 1 and times[-1] > 0:
            times *= (count - 1) / (self.rate or inf) / times[-1]
        yield 0.0
        yield from times.tolist()

    def _gaps(self, rng: "np.random.Generator", count: int) -> NDArray[np.float64]:
        rate, shape = self.mean or inf, self.burstiness or 1.0
        if self.process == "constant":
            return np.full(count, 1 / rate)
        return rng.gamma(shape, 1 / (rate * shape), count)


@frozen
class ArrivalSummary:
    """Statistics of arrivals.

    `duration` is from the first to the last arrival and `longest_gap` between two
    arrivals, in seconds.  `rate` is (arrivals - 1) / duration, NaN without a
    duration; the peaks are the highest rates in any 1 s and 10 s, counted from 0;
    all are in requests/s.  `variation` is the standard deviation of the gaps over
    their mean, 1 for Poisson; `burstiness` is 1 / variation^2, the shape of a gamma
    distribution of such gaps.  `ties` counts gaps of zero.  `per_second` has the
    number of arrivals in each second that has any.
    """

    arrivals: int
    duration: float
    rate: float
    variation: float
    burstiness: float
    ties: int
    longest_gap: float
    peak_1s: float
    peak_10s: float
    per_second: Mapping[int, int] = field(repr=False)

    def timeline(self, bins: int = 200) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return at most *bins* bins of whole seconds: their starts in seconds, and their rates in requests/s."""
        seconds = np.fromiter(self.per_second, dtype=np.int64)
        arrivals = np.fromiter(self.per_second.values(), dtype=np.float64)
        width = -(-(int(seconds.max()) + 1) // bins)
        rates = np.bincount(seconds // width, weights=arrivals) / width
        return np.arange(len(rates), dtype=np.float64) * width, rates

    def row(self) -> dict[str, float]:
        """Return the numbers by name."""
        return attrs.asdict(self, filter=lambda attribute, _: attribute.name != "per_second")


@define
class ArrivalTally:
    """Counts arrivals in order; memory grows with the number of seconds that have any."""

    _seconds: Counter[int] = field(factory=Counter)
    _gaps: int = 0
    _ties: int = 0
    _longest: float = 0.0
    _first: float | None = None
    _last: float = 0.0
    _mean: float = 0.0
    _squares: float = 0.0

    def add(self, arrival: float) -> None:
        self._seconds[int(arrival)] += 1
        if self._first is None:
            self._first = arrival
        else:
            self._add_gap(arrival - self._last)
        self._last = arrival

    def _add_gap(self, gap: float) -> None:
        """Update mean and squared deviation by Welford's algorithm."""
        self._gaps += 1
        self._ties += gap == 0
        self._longest = max(self._longest, gap)
        deviation = gap - self._mean
        self._mean += deviation / self._gaps
        self._squares += deviation * (gap - self._mean)

    def summary(self) -> ArrivalSummary:
        """Summarise the arrivals, of which there must be at least one."""
        duration = self._last - (self._first or 0.0)
        variation = sqrt(self._squares / self._gaps) / self._mean if self._mean else nan
        return ArrivalSummary(
            arrivals=self._gaps + 1, duration=duration, rate=self._gaps / duration if duration else nan,
            variation=variation, burstiness=1 / variation**2 if variation else inf, ties=self._ties,
            longest_gap=self._longest, peak_1s=self._peak(1), peak_10s=self._peak(10), per_second=self._seconds)

    def _peak(self, width: int) -> float:
        bins: Counter[int] = Counter()
        for second, arrivals in self._seconds.items():
            bins[second // width] += arrivals
        return max(bins.values()) / width
