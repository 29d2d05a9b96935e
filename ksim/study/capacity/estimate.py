"""What the replications at one rate say of the targets, together."""

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import field, frozen

from ksim.results.arrays import Floats
from ksim.study.capacity.intervals import UNKNOWN, Interval, of_mean
from ksim.study.capacity.targets import Target
from ksim.study.capacity.trial import Observation, Plan, Sample
from ksim.study.capacity.warm_up import mser

#: What counts against a target where the backlog grows: so many times what is allowed.
HOPELESS = 100.0


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

    @classmethod
    def of(cls, plan: Plan, observations: Sequence[Observation], own_spread: float = 0.0) -> "RatePoint":
        """What *observations* of one rate and different replications say."""
        whole = [seen for seen in observations if not seen.hopeless]
        cuts = [_cut([seen.samples[place] for seen in whole]) for place in range(len(plan.targets))]
        joined = [_Joined(plan, observations, place, cut, own_spread) for place, cut in enumerate(cuts)]
        rate, goodputs = observations[0].rate, np.array([_goodput(seen, max(cuts)) for seen in observations])
        excess = {one.target: one.excess for one in joined}
        return cls(
            rate=rate, replications=len(observations), hopeless=len(observations) - len(whole),
            saturated=sum(seen.saturated for seen in observations),
            attainment={one.target: one.attainment for one in joined}, values={one.target: one.value for one in joined},
            goodput=(float(goodputs.mean()), of_mean(goodputs, plan.confidence, own_spread).within(0.0, rate)),
            numbers=_means([seen.numbers for seen in whole]), meets=_verdict(excess, observations), excess=excess,
            multiples={one.target: one.multiples for one in joined})

    @property
    def grows(self) -> bool:
        """Whether the backlog kept growing in most replications."""
        return 2 * self.saturated > self.replications


def against(sample: Sample, begin: int) -> Floats:
    """The amounts of requests that count against a target, and what could, from *begin* until the load drains."""
    inside = slice(min(begin, sample.end), sample.end)
    return np.array([sample.amount[inside].sum(), sample.counted[inside].sum()])


def multiple_of_allowed(observation: Observation, place: int, target: Target, begin: int) -> float:
    """What counts against *target* in one replication, as a multiple of what it allows."""
    if observation.hopeless:
        return min(HOPELESS, 1 / target.allowed) if target.share is not None else HOPELESS
    amount, counted = against(observation.samples[place], begin)
    return float(amount / counted / target.allowed) if counted else 0.0


def _cut(samples: Sequence[Sample]) -> int:
    """Where the warm-up ends: MSER-5 of the mean over replications of the logarithm of what requests took.

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

    plan: Plan
    observations: Sequence[Observation]
    place: int
    cut: int
    own_spread: float

    @property
    def target(self) -> Target:
        return self.plan.targets[self.place]

    @property
    def multiples(self) -> Floats:
        """What counts against the target in each replication."""
        return np.array([multiple_of_allowed(seen, self.place, self.target, self.cut) for seen in self.observations])

    @property
    def excess(self) -> tuple[float, Interval]:
        return self._mean(self.multiples, self._least_error / self.target.allowed)

    @property
    def attainment(self) -> tuple[float, Interval]:
        """The share of requests within the limit; of a target on a mean, those within it, too."""
        shares = np.array([_within(seen, self.place, self.target, self.cut) for seen in self.observations])
        mean, interval = self._mean(shares, self._least_error)
        return mean, interval.within(0.0, 1.0)

    @property
    def value(self) -> tuple[float, Interval]:
        """The target's statistic of requests' latencies; inf where no run came to its end."""
        found = [value for seen in self.observations if not seen.hopeless
                 for value in _statistic(seen.samples[self.place], self.target, self.cut)]
        if not found:
            return float("inf"), UNKNOWN
        mean, interval = self._mean(np.array(found))
        return mean, interval.within(0.0)

    def _mean(self, values: Floats, least_error: float = 0.0) -> tuple[float, Interval]:
        return float(values.mean()), of_mean(values, self.plan.confidence, self.own_spread, least_error)

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


def _statistic(sample: Sample, target: Target, cut: int) -> list[float]:
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
    return {key: float(np.mean([told[key] for told in numbers])) for key in numbers[0]} if numbers else {}


def _verdict(excess: Mapping[Target, tuple[float, Interval]], observations: Sequence[Observation]) -> bool | None:
    if 2 * sum(seen.saturated for seen in observations) > len(observations):
        return False
    intervals = [interval for _, interval in excess.values()]
    if any(interval.low > 1 for interval in intervals):
        return False
    return True if all(interval.high <= 1 for interval in intervals) else None
