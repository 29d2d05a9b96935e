"""The distribution of a latency, for any number of values in little memory."""

from math import exp, log

import numpy as np
from attrs import define, field

from ksim.results.arrays import Floats, Ints
from ksim.results.metrics import PERCENTILES, Summary

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
