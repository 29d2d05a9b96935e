"""Curves of what counts against targets over rates, and the rate at which they cross what is allowed.

Curves are straight between the rates that were tried, over the logarithms of both, and never fall: more load helps
nobody.
"""

from collections.abc import Sequence
from math import exp, log

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.results.arrays import Floats
from ksim.study.capacity.intervals import Interval, of_mean

#: Less than this share of what a target allows counts as so much: none at all says little of how far there is to go.
FLOOR = 0.02
#: How far beyond the rates that were tried a curve is drawn on.
_BEYOND = 1.25


@frozen(eq=False)
class Curves:
    """What counts against targets in each replication, as multiples of what they allow: (rates, targets, replications).

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
        """The rate at which the worst target is just kept; None where that is at none of the rates, or at all."""
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
        found = of_mean(count * whole - (count - 1) * without, confidence, own_spread)
        return Interval(exp(min(found.low, whole)), exp(max(found.high, whole)))

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
    found = crossing(rates, levels, at)
    return found if found is not None else rates[-1] if max(levels) <= at else rates[0]
