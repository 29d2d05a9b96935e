"""Streaming summaries of arrivals."""

from collections import Counter
from collections.abc import Mapping
from math import inf, nan, sqrt

import attrs
import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray


@frozen
class ArrivalSummary:
    """When requests arrive.

    `duration` is from the first to the last arrival, `longest_gap` between two
    of them, in seconds; `rate` is (arrivals - 1) / duration, NaN without one,
    and like the peaks, in any 1 s and any 10 s counted off from 0, in
    requests/s; `variation` is the standard deviation of the gaps over their
    mean, 1 for Poisson; `burstiness` is 1 / variation^2, the shape of the gamma
    distribution of such gaps; `ties` counts gaps of zero.  `per_second` maps
    each second that has arrivals to their number.
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
        """Return the starts in seconds of at most *bins* bins of whole seconds, and the requests/s in each."""
        seconds = np.fromiter(self.per_second, dtype=np.int64)
        arrivals = np.fromiter(self.per_second.values(), dtype=np.float64)
        width = -(-(int(seconds.max()) + 1) // bins)
        rates = np.bincount(seconds // width, weights=arrivals) / width
        return np.arange(len(rates), dtype=np.float64) * width, rates

    def row(self) -> dict[str, float]:
        """Return the numbers by name."""
        return attrs.asdict(self, filter=lambda attribute, _: attribute.name != "per_second")


@define
class Clock:
    """Takes in arrivals in order; memory grows with the seconds that have any."""

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
        """Keep mean and squared deviation up to date as Welford does."""
        self._gaps += 1
        self._ties += gap == 0
        self._longest = max(self._longest, gap)
        off = gap - self._mean
        self._mean += off / self._gaps
        self._squares += off * (gap - self._mean)

    def summary(self) -> ArrivalSummary:
        """Summarise what was added, which must not be nothing."""
        duration = self._last - (self._first or 0.0)
        variation = sqrt(self._squares / self._gaps) / self._mean if self._mean else nan
        return ArrivalSummary(
            self._gaps + 1, duration, self._gaps / duration if duration else nan, variation,
            1 / variation**2 if variation else inf, self._ties, self._longest, self._peak(1), self._peak(10),
            self._seconds)

    def _peak(self, width: int) -> float:
        bins: Counter[int] = Counter()
        for second, arrivals in self._seconds.items():
            bins[second // width] += arrivals
        return max(bins.values()) / width
