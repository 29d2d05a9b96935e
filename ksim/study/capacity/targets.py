"""The statistics of capacity: latency targets, intervals of means, and the rate at which a target is just kept.

A `Target` allows some misses (a percentile) or some seconds (a mean).  `Curves` have, for each rate that was tried, the
misses over what is allowed; the highest rate is where the curve of the worst target crosses 1.  Curves are straight
between rates, over the logarithms of both, and never fall: more load helps nobody.
"""

import re
from collections.abc import Sequence
from math import exp, inf, isfinite, log

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.foundation.units import measured
from ksim.results.numbers import LATENCIES
from ksim.results.steps import Floats
from ksim.study.students_t import student

_FORM = "METRIC:STATISTIC:LIMIT, such as ttft:p99:1s or tpot:mean:50ms"
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
#: Requests of a run that may miss a percentile, at the least number of requests that a run should have, or must have.
_MISSES, _LEAST_MISSES = 10, 2
#: The fewest that a run should have; with fewer, the beginning and the end of a run are too large a part of it.
_FEWEST = 1000


@frozen
class Target:
    """A `statistic` (median, mean, p99, p99.9, ...) of a latency `metric` that may not exceed `limit` seconds.

    Two targets are equal if they say the same, however they are typed.
    """

    metric: str
    statistic: str
    limit: float
    text: str = field(default="", eq=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Parse ``ttft:p99:1s`` as of ``--slo``; raises ConfigError, and UnknownName for an unknown metric."""
        parts = text.strip().split(":")
        if len(parts) != 3:
            raise ConfigError("--slo", f"expected {_FORM}, not {text!r}")
        metric, statistic, limit = (part.strip() for part in parts)
        if metric not in LATENCIES:
            raise UnknownName("latency", metric, LATENCIES)
        if statistic not in ("mean", "median") and not _share_of(statistic):
            raise ConfigError("--slo", f"{statistic!r} is no statistic; expected mean, median, or a percentile such as"
                                       f" p99 or p99.9")
        return cls(metric, statistic, seconds_of("--slo", limit), text.strip())

    @property
    def share(self) -> float | None:
        """The share of requests that have to keep the limit: 0.99 of p99; None for a mean."""
        return None if self.statistic == "mean" else 0.5 if self.statistic == "median" else _share_of(self.statistic)

    @property
    def allowed(self) -> float:
        """The most that requests may have on the mean: a share of misses for a percentile, seconds for a mean."""
        return self.limit if self.share is None else 1 - self.share

    @property
    def requests(self) -> int:
        """The requests that a run should have: so many that ten may miss the limit, and at least a thousand."""
        return max(_FEWEST, round(_MISSES / self.allowed)) if self.share is not None else _FEWEST

    @property
    def least_requests(self) -> int:
        """The fewest requests that a run may have: so many that two may miss."""
        return round(_LEAST_MISSES / self.allowed) if self.share is not None else 50

    def __str__(self) -> str:
        return self.text or f"{self.metric}:{self.statistic}:{self.limit:g}s"


def _share_of(statistic: str) -> float | None:
    """0.99 of p99; None for what is no percentile between 0 and 100."""
    match = _PERCENTILE.fullmatch(statistic)
    share = round(float(match[1]) / 100, 12) if match else 0.0
    return share if 0 < share < 1 else None


def seconds_of(flag: str, time: str | float) -> float:
    """The seconds of a *time* such as "50ms" that *flag* names; raises ConfigError for what is none, or not above 0."""
    try:
        seconds = measured(time, "s") if isinstance(time, str) else time
    except ValueError as error:
        raise ConfigError(flag, str(error)) from None
    if seconds <= 0:
        raise ConfigError(flag, f"expected more than 0 s, not {time!r}")
    return seconds


@frozen
class Interval:
    """From `low` to `high`."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def within(self, least: float, most: float = inf) -> "Interval":
        """The part of it that is possible for a mean of values between *least* and *most*."""
        return Interval(max(least, self.low), min(most, self.high))


#: What is known of a mean before there are replications enough.
UNKNOWN = Interval(-inf, inf)
#: By how much skewness may stretch an end at most.  The adjustment has a pole, and few values may lie next to it.
_MOST = 3.0
#: The fewest replications that say how much they differ.
FEWEST = 3


def of_mean(values: Floats, confidence: float, own_spread: float = 0.0, least_error: float = 0.0) -> Interval:
    """The interval of the mean of *values*, one for each replication.

    Student's t, adjusted for skewness as in Skart (Tafazzoli and Wilson, "Skart: a skewness- and
    autocorrelation-adjusted batch-means procedure for simulation analysis", IIE Transactions 43, 2011; Willink, "A
    confidence interval and test for the mean of an asymmetric distribution", 2005): some replications have a long
    queue and most have none, so a mean is more often too low than too high.  Few replications do not know their own
    skewness, so no end is closer than without it, nor more than three times as far.  *own_spread* is that of
    `Traffic`, and the standard error is *least_error* at least.
    """
    count = len(values)
    if count < FEWEST:
        return UNKNOWN
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    error = max(deviation * (1 / count + own_spread) ** 0.5, least_error)
    beta = _skewness(values, deviation) / (6 * count**0.5)
    t = student(0.5 + confidence / 2, count - 1)
    below, above = (min(max(t, end), _MOST * t) for end in (_adjusted(t, beta), -_adjusted(-t, beta)))
    return Interval(mean - below * error, mean + above * error)


def _skewness(values: Floats, deviation: float) -> float:
    """The unbiased third central moment over the cube of the standard deviation."""
    count = len(values)
    if not deviation > 0 or not isfinite(deviation):
        return 0.0
    third = float(((values - values.mean()) ** 3).sum()) * count / ((count - 1) * (count - 2))
    return third / deviation**3


def _adjusted(t: float, beta: float) -> float:
    """Student's *t*, moved for a skewness of 6 sqrt(count) *beta*."""
    return t if abs(beta) < 1e-6 else float((np.cbrt(1 + 6 * beta * (t - beta)) - 1) / (2 * beta))


#: Less than this share of what a target allows counts as so much: none at all says little of how far there is to go.
FLOOR = 0.02
#: How far beyond the rates that were tried a curve is drawn on.
_BEYOND = 1.25


@frozen(eq=False)
class Curves:
    """Misses over what each target allows, in each replication: an array of (rates, targets, replications).

    `rates` ascend, and all have the same replications.  `grows` tells at which of them the backlog grows.
    """

    rates: Sequence[float]
    multiples: Floats
    grows: NDArray[np.bool_]

    @property
    def levels(self) -> Floats:
        """The logarithm of the worst target's mean over replications: 0 where it is just what is allowed."""
        return self._levels(np.ones(self.multiples.shape[2], bool))

    def crossing(self) -> float | None:
        """The rate at which the worst target is just kept; None if all rates that were tried keep it, or none does."""
        return crossing(self.rates, self.levels)

    def interval(self, confidence: float, own_spread: float = 0.0) -> Interval:
        """The interval of that rate: a jackknife over the replications.

        A curve of fewer replications is not only less sure but too high, as a long queue may be missing from it.  The
        jackknife leaves out one replication after the other, takes that bias away and says how uncertain the rate is
        (Efron and Tibshirani, An introduction to the bootstrap, chapter 11; of ratios and other functions of means in
        simulations: Asmussen and Glynn, Stochastic Simulation, section III.5).  Rates are compared by logarithms.
        """
        whole, without = self._log_rates
        count = len(without)
        logs = of_mean(count * whole - (count - 1) * without, confidence, own_spread)
        return Interval(exp(min(logs.low, whole)), exp(max(logs.high, whole)))

    @property
    def reach(self) -> tuple[float, float]:
        """The least and the most of the rates that are found with all replications, and with all but one.

        They may lie beyond the rates that were tried.
        """
        whole, without = self._log_rates
        return exp(min(whole, without.min())), exp(max(whole, without.max()))

    @property
    def _log_rates(self) -> tuple[float, Floats]:
        """The logarithm of the rate that all replications find, and those without the first, the second, ..."""
        places = np.arange(self.multiples.shape[2])
        return (self._log_rate(places >= 0), np.array([self._log_rate(places != left_out) for left_out in places]))

    def _levels(self, which: NDArray[np.bool_]) -> Floats:
        worst = self.multiples[:, :, which].mean(axis=2).max(axis=1)
        levels: Floats = np.where(self.grows, np.inf, np.log(np.maximum(FLOOR, worst)))
        return np.minimum(levels, _HIGHEST)

    def _log_rate(self, which: NDArray[np.bool_]) -> float:
        """The logarithm of the rate that replications *which* find, also a little beyond the rates that were tried."""
        levels, logs = np.maximum.accumulate(self._levels(which)), np.log(self.rates)
        above = int(np.clip(np.searchsorted(levels, 0.0, side="right"), 1, len(logs) - 1))
        (before, after), (low, high) = levels[above - 1:above + 1], logs[above - 1:above + 1]
        slope = (after - before) / (high - low)
        rate = low - before / slope if slope > 0 else -np.inf if before > 0 else np.inf
        return float(np.clip(rate, logs[0] - log(_BEYOND), logs[-1] + log(_BEYOND)))


#: The logarithm of what counts where the backlog grows, or nearly all requests miss.
_HIGHEST = log(100.0)


def level(multiple: float) -> float:
    """The logarithm of a multiple of what a target allows."""
    return min(log(max(FLOOR, multiple)), _HIGHEST)


def crossing(rates: Sequence[float], levels: Sequence[float] | Floats, at: float = 0.0) -> float | None:
    """The rate at which a curve through these points, in ascending order of rates, rises above *at*; None if it does
    so at none of them, or at all."""
    rising = np.maximum.accumulate(levels)
    above = int(np.searchsorted(rising, at, side="right"))
    if above in (0, len(rates)):
        return None
    (before, after), (low, high) = rising[above - 1:above + 1], (log(rate) for rate in rates[above - 1:above + 1])
    return exp(low + (high - low) * float((at - before) / (after - before)))


def rate_of(rates: Sequence[float], levels: Sequence[float], at: float) -> float:
    """The same, but the first or the last rate where the curve does not cross *at*."""
    rate = crossing(rates, levels, at)
    return rate if rate is not None else rates[-1] if max(levels) <= at else rates[0]
