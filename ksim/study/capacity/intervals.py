"""Confidence intervals of the mean of a few replications."""

from math import inf, isfinite

import numpy as np
from attrs import frozen

from ksim.results.arrays import Floats
from ksim.study.students_t import student


@frozen
class Interval:
    """From `low` to `high`."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def within(self, least: float, most: float = inf) -> "Interval":
        """What of it is possible for a mean of values between *least* and *most*."""
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
