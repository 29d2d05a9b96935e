"""The search for the highest rate that a set-up carries within the targets.

`RateSearch` says which rates to try, with which replications; a `RatePoint` is what the replications at one rate say
together.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import exp, log

import numpy as np
from attrs import define, field, frozen

from ksim.foundation.errors import ConfigError, KsimError
from ksim.results.steps import Floats
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.targets import FEWEST, UNKNOWN, Curves, Interval, Target, level, of_mean, rate_of
from ksim.study.capacity.traffic import Traffic
from ksim.study.capacity.trial import Criteria, Observation, RateRun, TargetSample, mser, observe, throughput
from ksim.study.students_t import student
from ksim.study.workers import RunWorkers, in_order

#: What counts against a target where the backlog grows: so many times what is allowed.
HOPELESS = 100.0
#: Batches of a replication, whose means say how sure a few replications are (Law, *Simulation Modeling and Analysis*,
#: section 9.5.3): so few that each lasts as long as two requests or more.
_BATCHES = 10


@frozen(eq=False)
class RatePoint:
    """A `rate` that was tried, in requests/s: means over its `replications`, each with its interval.

    `hopeless` of them were stopped early, and in `saturated` the backlog kept growing.  `attainment` is the share of
    requests within each target's limit, and `values` are the targets' latencies in seconds; `goodput` counts requests/s
    that keep all limits.  `numbers` are costs and throughputs.  `meets` tells whether all targets are kept, None where
    the intervals do not say.  `excess` is what counts against each target as a multiple of what it allows, and
    `multiples` is that of each replication.
    """

    rate: float
    replications: int
    hopeless: int
    saturated: int
    attainment: Mapping[Target, tuple[float, Interval]]
    values: Mapping[Target, tuple[float, Interval]]
    goodput: tuple[float, Interval]
    numbers: Mapping[str, float]
    meets: bool | None
    excess: Mapping[Target, tuple[float, Interval]]
    multiples: Mapping[Target, Floats] = field(repr=False)
    first: Mapping[str, float] = field(factory=dict, repr=False)

    @classmethod
    def of(cls, criteria: Criteria, observations: Sequence[Observation], own_spread: float = 0.0) -> "RatePoint":
        """The point of *observations* at one rate, each of another replication."""
        whole = [seen for seen in observations if not seen.hopeless]
        cuts = [_cut([seen.samples[place] for seen in whole]) for place in range(len(criteria.targets))]
        joined = [_Joined(criteria, observations, place, cut, own_spread) for place, cut in enumerate(cuts)]
        rate, goodputs = observations[0].rate, np.array([_goodput(seen, max(cuts)) for seen in observations])
        excess = {one.target: one.excess for one in joined}
        return cls(
            rate=rate, replications=len(observations), hopeless=len(observations) - len(whole),
            saturated=sum(seen.saturated for seen in observations),
            attainment={one.target: one.attainment for one in joined}, values={one.target: one.value for one in joined},
            goodput=(float(goodputs.mean()), of_mean(goodputs, criteria.confidence, own_spread).within(0.0, rate)),
            numbers=_means([seen.numbers for seen in whole]), meets=_verdict(excess, observations), excess=excess,
            multiples={one.target: one.multiples for one in joined}, first=observations[0].numbers)

    @property
    def grows(self) -> bool:
        """Whether the backlog kept growing in most replications."""
        return 2 * self.saturated > self.replications


def against(sample: TargetSample, begin: int, end: int | None = None) -> Floats:
    """The amounts of requests that count against a target, and what could, from *begin* to *end*, by default until the
    load drains."""
    inside = slice(min(begin, sample.end), sample.end if end is None else end)
    return np.array([sample.amount[inside].sum(), sample.counted[inside].sum()])


def multiple_of_allowed(observation: Observation, place: int, target: Target, begin: int, end: int | None = None
                        ) -> float:
    """The misses (or seconds) of *target* in one replication, over what the target allows: more than 1 is too many."""
    if observation.hopeless:
        return min(HOPELESS, 1 / target.allowed) if target.share is not None else HOPELESS
    amount, counted = against(observation.samples[place], begin, end)
    return float(amount / counted / target.allowed) if counted else 0.0


def _cut(samples: Sequence[TargetSample]) -> int:
    """The end of the warm-up: MSER-5 of the logarithms of requests' latencies, averaged over replications.

    The mean, so that a replication's own busy times are not taken for its warm-up; the logarithm, so that long
    latencies do not decide alone.
    """
    if not samples:
        return 0
    length = min(sample.end for sample in samples)
    logs = np.log(np.maximum([sample.value[:length] for sample in samples], 1e-6))
    known = np.isfinite(logs)
    counts = known.sum(axis=0)
    sums = np.where(known, logs, 0.0).sum(axis=0)
    some = counts > 0
    series = np.where(some, sums / np.maximum(counts, 1), sums.sum() / max(1, counts.sum()))
    return mser(series)


@frozen(eq=False)
class _Joined:
    """The replications at one rate, and the target at a `place` of the plan, without the first `cut` requests."""

    criteria: Criteria
    observations: Sequence[Observation]
    place: int
    cut: int
    own_spread: float

    @property
    def target(self) -> Target:
        return self.criteria.targets[self.place]

    @property
    def multiples(self) -> Floats:
        """For each replication, its misses over what the target allows."""
        return np.array([multiple_of_allowed(seen, self.place, self.target, self.cut) for seen in self.observations])

    @property
    def excess(self) -> tuple[float, Interval]:
        """What counts against the target; the interval of a few replications is that of their batch means."""
        least = self._least_error / self.target.allowed
        mean, interval = self._mean(self.multiples, least)
        if len(self.observations) <= FEWEST:
            batches = np.concatenate([self._batches(seen) for seen in self.observations])
            interval = of_mean(batches, self.criteria.confidence, self.own_spread / _BATCHES, least)
        return mean, interval

    def _batches(self, seen: Observation) -> Floats:
        """What counts against the target in successive batches of one replication."""
        end = 0 if seen.hopeless else seen.samples[self.place].end
        edges = np.linspace(min(self.cut, end), end, _BATCHES + 1).astype(int)
        return np.array([multiple_of_allowed(seen, self.place, self.target, *pair) for pair in pairwise(edges)])

    @property
    def attainment(self) -> tuple[float, Interval]:
        """The share of requests within the limit; of a target on a mean, those within it, too."""
        shares = np.array([_within(seen, self.place, self.target, self.cut) for seen in self.observations])
        mean, interval = self._mean(shares, self._least_error)
        return mean, interval.within(0.0, 1.0)

    @property
    def value(self) -> tuple[float, Interval]:
        """The target's statistic of requests' latencies; inf where no run came to its end."""
        values = [value for seen in self.observations if not seen.hopeless
                  for value in _statistic(seen.samples[self.place], self.target, self.cut)]
        if not values:
            return float("inf"), UNKNOWN
        mean, interval = self._mean(np.array(values))
        return mean, interval.within(0.0)

    def _mean(self, values: Floats, least_error: float = 0.0) -> tuple[float, Interval]:
        return float(values.mean()), of_mean(values, self.criteria.confidence, self.own_spread, least_error)

    @property
    def _least_error(self) -> float:
        """The standard error of a share of independent requests, which that of dependent ones does not fall below.

        Where nobody misses a limit, the next one may all the same (Agresti and Coull, 1998).
        """
        parts = [against(seen.samples[self.place], self.cut) for seen in self.observations if not seen.hopeless]
        if self.target.share is None or not parts:
            return 0.0
        missed, counted = np.sum(parts, axis=0)
        share = (missed + 1) / (counted + 2)
        return float((share * max(0.0, 1 - share) / max(1.0, counted)) ** 0.5)


def _within(observation: Observation, place: int, target: Target, cut: int) -> float:
    if observation.hopeless:
        return 0.0
    if target.share is not None:
        return 1 - multiple_of_allowed(observation, place, target, cut) * target.allowed
    sample = observation.samples[place]
    inside = slice(min(cut, sample.end), sample.end)
    amount, counted = sample.amount[inside], sample.counted[inside]
    return float((amount <= target.limit)[counted > 0].mean()) if counted.any() else 1.0


def _statistic(sample: TargetSample, target: Target, cut: int) -> list[float]:
    """The target's statistic of the latencies in *sample*; none where there are none."""
    values = sample.value[min(cut, sample.end):sample.end]
    values = values[np.isfinite(values)]
    if not len(values):
        return []
    return [float(values.mean() if target.share is None else np.quantile(values, target.share))]


def _goodput(observation: Observation, cut: int) -> float:
    good = observation.good[cut:]
    return observation.rate * float(good.mean()) if len(good) else 0.0


def _means(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([run[key] for run in numbers])) for key in numbers[0]} if numbers else {}


def _verdict(excess: Mapping[Target, tuple[float, Interval]], observations: Sequence[Observation]) -> bool | None:
    if 2 * sum(seen.saturated for seen in observations) > len(observations):
        return False
    intervals = [interval for _, interval in excess.values()]
    if any(interval.low > 1 for interval in intervals):
        return False
    return True if all(interval.high <= 1 for interval in intervals) else None


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
class RateSearch:
    """The trials of one set-up, and what they say."""

    scenario: Scenario
    criteria: Criteria
    traffic: Traffic
    workers: RunWorkers
    seen: dict[tuple[float, int, int | None], Observation] = field(factory=dict)

    @classmethod
    def of(cls, scenario: Scenario, criteria: Criteria, workers: RunWorkers) -> "RateSearch":
        """Raises KsimError for a workload that has no rate, or too few requests for the targets."""
        if criteria.count < criteria.least:
            raise ConfigError("--requests", f"{criteria.count:,} are too few to tell whether the targets are kept; that"
                                            f" takes {criteria.least:,} or more")
        return cls(scenario, criteria, Traffic.of(scenario.workload, criteria.count, criteria.least), workers)

    def observe(self, trials: Sequence[tuple[float, int, int | None]]) -> None:
        """Make all *trials* that have not been made, in one round: (rate, replication, draw)."""
        missing = [trial for trial in trials if trial not in self.seen]
        asked = [RateRun(self.scenario, *trial) for trial in missing]
        results = in_order(self.workers.run(partial(observe, self.criteria), asked), len(asked))
        self.seen.update(zip(missing, results, strict=True))

    def point(self, rate: float, replications: int, draw: int | None = None) -> RatePoint:
        """The point at *rate* after so many *replications*, which are run where they are missing."""
        self.observe([(rate, number, draw) for number in range(replications)])
        return self.known(rate, draw)

    def known(self, rate: float, draw: int | None = None) -> RatePoint:
        """The point at *rate*, of the replications that were run."""
        there = sorted((key[1], seen) for key, seen in self.seen.items() if key[0] == rate and key[2] == draw)
        return RatePoint.of(self.criteria, [seen for _, seen in there], self.traffic.own_spread)

    @property
    def rates(self) -> list[float]:
        """The rates that were tried, without draws of model errors."""
        return sorted({rate for rate, _, draw in self.seen if draw is None})

    def points(self) -> tuple[RatePoint, ...]:
        """The point at each of them."""
        return tuple(self.known(rate) for rate in self.rates)

    def notes(self) -> tuple[str, ...]:
        """Notes on the traffic for readers of the answer."""
        return (self.traffic.note,) if self.traffic.note else ()

    # From far away.

    def bracket(self, near: float | None) -> tuple[float, float]:
        """Two rates close together, of which the first replication keeps the targets at one; *near* says where to
        begin."""
        start = near or 0.8 * in_order(self.workers.run(partial(throughput, self.criteria), [self.scenario]), 1)[0]
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
        """The `level` of the worst target in one replication: above 0, it is missed."""
        self.observe([(rate, replication, draw)])
        return self._level_known(rate, replication, draw)

    def _level_known(self, rate: float, replication: int, draw: int | None) -> float:
        point = RatePoint.of(self.criteria, [self.seen[rate, replication, draw]])
        return level(HOPELESS if point.grows else max(excess for excess, _ in point.excess.values()))

    # Close by.

    def refine(self, low: float, high: float) -> Curves:
        """Try rates from *low* to *high*, and beyond, until the highest rate of several replications lies among them,
        whichever one is left out; then add replications there until the interval is narrow enough.

        Return their curves.
        """
        count, rates = min(FIRST, self.criteria.replications), [low, high]
        for _ in range(_ROUNDS):
            curves = self.curves(rates, count)
            least, most = curves.reach
            if least < rates[0]:
                rates = [_tidy(rates[0] / _BRACKET), *rates]
            elif most > rates[-1]:
                rates = [*rates, _tidy(rates[-1] * _BRACKET)]
            elif count >= self.criteria.replications or self._narrow(curves):
                break
            else:
                rates = [rate for place, rate in enumerate(rates) if rates[min(place + 1, len(rates) - 1)] > least
                         and rates[max(place - 1, 0)] < most]
                count = min(count + MORE, self.criteria.replications)
        return curves

    def _narrow(self, curves: Curves) -> bool:
        """Whether the interval is as narrow as the plan asks."""
        interval = curves.interval(self.criteria.confidence, self.traffic.own_spread)
        return log(interval.high / interval.low) / 2 <= self.criteria.precision

    def curves(self, rates: Sequence[float], count: int) -> Curves:
        """The curves of so many replications over *rates*."""
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
        """The interval of *rate* that follows from errors of the latency model alone.

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
        reach = student(0.5 + self.criteria.confidence / 2, _DRAWS) * spread
        return Interval(rate * exp(-reach), rate * exp(reach))


def _tidy(rate: float) -> float:
    """*rate* to four digits, as a person would write it."""
    return float(f"{rate:.4g}")
