"""The search for the highest rate: which rates to try, with which replications."""

from collections.abc import Sequence
from functools import partial
from math import exp, log

import numpy as np
from attrs import define, field

from ksim.foundation.errors import ConfigError, KsimError
from ksim.simulation.scenario import Scenario
from ksim.study.capacity.curve import Curves, level, rate_of
from ksim.study.capacity.estimate import HOPELESS, RatePoint
from ksim.study.capacity.intervals import Interval
from ksim.study.capacity.targets import Target
from ksim.study.capacity.traffic import Traffic
from ksim.study.capacity.trial import Observation, Plan, Trial, observe, throughput
from ksim.study.students_t import student
from ksim.study.workers import Workers, in_order

#: By what rates differ until one keeps the targets and another does not, at first, and then between these two.
_LEAP, _BRACKET = 1.5, 1.12
#: How often a leap is doubled before the search is given up, and how many rates the refinement may add.
_LEAPS, _ROUNDS = 5, 12
#: Replications that rates close to the highest begin with, and that are added at a time.
FIRST, MORE = 8, 4
#: Draws of model errors, and how often the rate of each is guessed.
_DRAWS, _GUESSES = 5, 2


class OutOfReach(KsimError):
    """A target is missed at any rate: `target`, its value in seconds, and the lowest rate that was tried."""

    def message(self) -> str:
        target, value, rate = self.args
        return (f"{target} is out of reach: even at {rate:.3g} requests/s, its {target.statistic} is"
                f" {1e3 * value:,.0f} ms")


@define
class Search:
    """The trials of one set-up, and what they say."""

    scenario: Scenario
    plan: Plan
    traffic: Traffic
    workers: Workers
    seen: dict[tuple[float, int, int | None], Observation] = field(factory=dict)

    @classmethod
    def of(cls, scenario: Scenario, plan: Plan, workers: Workers) -> "Search":
        """Raises KsimError for a workload that has no rate, or too few requests for the targets."""
        if plan.count < plan.least:
            raise ConfigError("--requests", f"{plan.count:,} are too few to tell whether the targets are kept; that"
                                            f" takes {plan.least:,} or more")
        return cls(scenario, plan, Traffic.of(scenario.workload, plan.count, plan.least), workers)

    def observe(self, trials: Sequence[tuple[float, int, int | None]]) -> None:
        """Make all *trials* that have not been made, in one round: (rate, replication, draw)."""
        missing = [trial for trial in trials if trial not in self.seen]
        asked = [Trial(self.scenario, *trial) for trial in missing]
        results = in_order(self.workers.run(partial(observe, self.plan), asked), len(asked))
        self.seen.update(zip(missing, results, strict=True))

    def point(self, rate: float, replications: int, draw: int | None = None) -> RatePoint:
        """What so many replications at *rate* say."""
        self.observe([(rate, number, draw) for number in range(replications)])
        return self.known(rate, draw)

    def known(self, rate: float, draw: int | None = None) -> RatePoint:
        """What is known at *rate*."""
        there = sorted((key[1], seen) for key, seen in self.seen.items() if key[0] == rate and key[2] == draw)
        return RatePoint.of(self.plan, [seen for _, seen in there], self.traffic.own_spread)

    @property
    def rates(self) -> list[float]:
        """The rates that were tried, without draws of model errors."""
        return sorted({rate for rate, _, draw in self.seen if draw is None})

    def points(self) -> tuple[RatePoint, ...]:
        """What is known at each of them."""
        return tuple(self.known(rate) for rate in self.rates)

    def notes(self) -> tuple[str, ...]:
        """What a reader has to know of the traffic."""
        return (self.traffic.note,) if self.traffic.note else ()

    # From far away.

    def bracket(self, near: float | None) -> tuple[float, float]:
        """Two rates close together, of which the first replication keeps the targets at one; *near* says where to
        begin."""
        start = near or 0.8 * in_order(self.workers.run(partial(throughput, self.plan), [self.scenario]), 1)[0]
        low, high = self._ends(_tidy(start))
        while high / low > _BRACKET:
            middle = _tidy((low * high) ** 0.5)
            low, high = (low, middle) if self._level(middle) > 0 else (middle, high)
        return low, high

    def _ends(self, start: float) -> tuple[float, float]:
        """A rate that keeps the targets, and one that does not; raises OutOfReach where none keeps them."""
        misses = self._level(start) > 0
        before, leap = start, 1 / _LEAP if misses else _LEAP
        for _ in range(_LEAPS):
            rate = _tidy(before * leap)
            if (self._level(rate) > 0) != misses:
                return (rate, before) if misses else (before, rate)
            before, leap = rate, leap * leap
        if misses:
            self._give_up(before)
        raise KsimError(f"the targets are kept even at {before:.3g} requests/s; runs of {self.traffic.count:,} requests"
                        " are too short to show more: ask for more --requests")

    def _give_up(self, rate: float) -> None:
        point = self.known(rate)
        target = max(point.excess, key=lambda one: point.excess[one][0])
        raise OutOfReach(target, point.values[target][0], rate)

    def _level(self, rate: float, replication: int = 0, draw: int | None = None) -> float:
        """How far one replication is above what the worst of the targets allows."""
        self.observe([(rate, replication, draw)])
        return self._level_known(rate, replication, draw)

    def _level_known(self, rate: float, replication: int, draw: int | None) -> float:
        point = RatePoint.of(self.plan, [self.seen[rate, replication, draw]])
        return level(HOPELESS if point.grows else max(excess for excess, _ in point.excess.values()))

    # Close by.

    def refine(self, low: float, high: float) -> Curves:
        """Try rates from *low* to *high*, and beyond, until the highest rate of several replications lies among them,
        whichever one is left out; then add replications there until the interval is narrow enough.

        Return their curves.
        """
        count, rates = min(FIRST, self.plan.replications), [low, high]
        for _ in range(_ROUNDS):
            curves = self.curves(rates, count)
            least, most = curves.reach
            if least < rates[0]:
                rates = [_tidy(rates[0] / _BRACKET), *rates]
            elif most > rates[-1]:
                rates = [*rates, _tidy(rates[-1] * _BRACKET)]
            elif count >= self.plan.replications or self._narrow(curves):
                break
            else:
                rates = [rate for place, rate in enumerate(rates) if rates[min(place + 1, len(rates) - 1)] > least
                         and rates[max(place - 1, 0)] < most]
                count = min(count + MORE, self.plan.replications)
        return curves

    def _narrow(self, curves: Curves) -> bool:
        """Whether the interval is as narrow as the plan asks."""
        interval = curves.interval(self.plan.confidence, self.traffic.own_spread)
        return log(interval.high / interval.low) / 2 <= self.plan.precision

    def curves(self, rates: Sequence[float], count: int) -> Curves:
        """What so many replications say at *rates*."""
        self.observe([(rate, number, None) for rate in rates for number in range(count)])
        points = [self.point(rate, count) for rate in rates]
        return Curves(rates, np.array([list(point.multiples.values()) for point in points]),
                      np.array([point.grows for point in points]))

    def binding(self, rate: float) -> Target | None:
        """The target that counts most at the first rate above *rate*; None where the backlog grows there."""
        above = [point for point in self.points() if point.rate >= rate * (1 - 1e-9) and point.replications >= 2]
        if not above or above[0].grows:
            return None
        return max(above[0].excess, key=lambda target: above[0].excess[target][0])

    # Errors of the latency model.

    def model(self, rate: float) -> Interval:
        """What the errors of the latency model leave open about *rate*.

        Each draw of them has its own highest rate for the first replication's traffic.  How far these are from that
        without errors, in logarithms, is normal about 0.  A draw that counts as much against the targets as a rate
        without errors would is as good as that rate: so two guesses find its own.
        """
        rates = [tried for tried in self.rates if (tried, 0, None) in self.seen]
        levels = [self._level_known(tried, 0, None) for tried in rates]
        own = rate_of(rates, levels, 0.0)
        guesses = [_tidy(own)] * _DRAWS
        for _ in range(_GUESSES):
            self.observe([(guess, 0, draw) for draw, guess in enumerate(guesses)])
            alike = [rate_of(rates, levels, self._level_known(guess, 0, draw)) for draw, guess in enumerate(guesses)]
            guesses = [_tidy(guess * own / same) for guess, same in zip(guesses, alike, strict=True)]
        spread = float(np.mean([log(guess / own) ** 2 for guess in guesses]) ** 0.5)
        reach = student(0.5 + self.plan.confidence / 2, _DRAWS) * spread
        return Interval(rate * exp(-reach), rate * exp(reach))


def _tidy(rate: float) -> float:
    """*rate* to four digits, as a person would write it."""
    return float(f"{rate:.4g}")
