"""Arrivals: the processes that draw them, at rates that may change with time, and the statistics of given ones.

Phases of a rate follow each other; each is constant, a ramp or a sine.  Arrivals with such a rate come from those with
a rate of one by a change of time: the n-th of these, at u, arrives when the integral of the rate has come to u.  A
Poisson process stays one (Lewis and Shedler, "Simulation of nonhomogeneous Poisson processes by thinning", 1979,
section 2), and the arrivals to expect in any time are the integral over it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, repeat, takewhile
from math import inf, isfinite, nan, pi, sqrt
from typing import ClassVar

import attrs
import numpy as np
from attrs import define, evolve, field, frozen
from attrs.validators import and_, ge, gt, in_, le, optional
from numpy.typing import NDArray

from ksim.foundation.units import LONGEST, Seconds, optional_quantity

__all__ = ["Phase", "Rates", "Arrivals", "ArrivalSummary", "ArrivalTally"]


Floats = NDArray[np.float64]
#: Halvings that find a time in a sine to the last bit of a double.
_HALVINGS = 64
_MOST = 1e9


@frozen
class Phase:
    """A part of the time: a constant rate, a ramp from `rate` to `to`, or a sine around `rate`."""

    rate: float = field(validator=(ge(0.0), le(_MOST)))
    """Rate of arrivals; the mean of a sine. Unit: requests/s."""
    for_: Seconds | None = field(default=None, converter=optional_quantity,
                                 validator=optional((gt(0.0), le(LONGEST))))
    """How long the phase lasts. Unit: s. Default: to the end, in the last phase. Example: "90 s"."""
    to: float | None = field(default=None, validator=optional((ge(0.0), le(_MOST))))
    """Rate at the end of a ramp. Unit: requests/s. Default: `rate`. Example: 10.0."""
    amplitude: float = field(default=0.0, validator=ge(0))
    """How far a sine goes above and below `rate`: rate + amplitude * sin(2 pi t / period). Unit: requests/s."""
    period: Seconds | None = field(default=None, converter=optional_quantity,
                                   validator=optional((gt(0.0), le(LONGEST))))
    """Time from one peak of the sine to the next. Unit: s. Default: required for a sine. Example: "86400 s"."""

    def __attrs_post_init__(self) -> None:
        if self.to is not None and (self.amplitude or self.for_ is None):
            raise ValueError("to is the end of a ramp, which needs a length (for)" if self.for_ is None else
                             "give to or amplitude: a phase is a ramp or a sine")
        if bool(self.amplitude) != (self.period is not None):
            raise ValueError("a sine has an amplitude and a period; give both or neither")
        if self.amplitude > self.rate:
            raise ValueError(f"amplitude = {self.amplitude:g} is above rate = {self.rate:g}, and no rate is negative")

    @property
    def length(self) -> float:
        """Its length in seconds, which may be infinite."""
        return inf if self.for_ is None else self.for_

    def integral(self, time: Floats) -> Floats:
        """Arrivals to expect up to *time*, in seconds from the begin of the phase: an array of the same shape."""
        expected: Floats = self.rate * time
        if self.to is not None:
            return expected + (self.to - self.rate) / self.length * time**2 / 2
        if self.period is not None:
            turn = 2 * pi / self.period
            return expected + self.amplitude / turn * (1 - np.cos(turn * time))
        return expected

    def time(self, expected: Floats) -> Floats:
        """The times, in seconds from the begin of the phase, up to which so many arrivals are to be *expected*."""
        if self.to is not None:
            slope = (self.to - self.rate) / self.length
            root = np.sqrt(np.maximum(self.rate**2 + 2 * slope * expected, 0))
            return np.minimum(2 * expected / np.maximum(self.rate + root, np.finfo(float).tiny), self.length)
        if self.period is None:
            return expected / self.rate
        low = np.maximum(expected - self.amplitude * self.period / pi, 0) / self.rate
        high = expected / self.rate
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            early = self.integral(middle) < expected
            low, high = np.where(early, middle, low), np.where(early, high, middle)
        return np.minimum((low + high) / 2, self.length)


@frozen
class Rates:
    """The rate of *phases* one after the other; with `repeat`, the first follows the last."""

    phases: Sequence[Phase]
    repeat: bool = False

    def check(self) -> None:
        """Raise ValueError for phases that cannot follow each other, and for those in which nobody arrives."""
        for number, phase in enumerate(self.phases):
            if phase.for_ is None and (self.repeat or number < len(self.phases) - 1):
                raise ValueError(f"phases[{number}] has no length; set for, such as for = '90 s'")
        if self.phases[0].rate == 0 and not self.phases[0].to:
            raise ValueError("phases[0] has a rate of 0, and the first request arrives at 0 s; leave the phase out")
        if self.phases[-1].for_ is None and not self.phases[-1].rate:
            raise ValueError(f"phases[{len(self.phases) - 1}] has a rate of 0 and no end; leave it out")
        if isfinite(self.length) and self.length > LONGEST:
            raise ValueError(f"phases last {self.length:g} s, and at most {LONGEST:g} s can be simulated")

    @property
    def length(self) -> float:
        """The length of all phases in seconds, which may be infinite."""
        return sum(phase.length for phase in self.phases)

    @property
    def constant(self) -> bool:
        """Whether the rate never changes."""
        (first, *others) = self.phases
        return not others and first.period is None and first.to in (None, first.rate)

    @cached_property
    def _begins(self) -> Floats:
        """The start of each phase, in seconds: (phases,)."""
        return np.cumsum([0.0, *(phase.length for phase in self.phases[:-1])])

    @cached_property
    def _expected(self) -> Floats:
        """Arrivals to expect up to the end of each phase: (phases,)."""
        each = [inf if phase.for_ is None else float(phase.integral(np.array(phase.for_))) for phase in self.phases]
        return np.cumsum(each)

    @property
    def expected(self) -> float:
        """Arrivals to expect in all phases, once through."""
        return float(self._expected[-1])

    @property
    def mean(self) -> float:
        """The mean rate in requests/s; of the last phase, if it does not end."""
        changes = isfinite(self.length) and not self.constant
        return self.expected / self.length if changes else self.phases[-1].rate

    def times(self, expected: Floats) -> Floats:
        """The times in seconds up to which so many arrivals are to be *expected*; those after all phases are left out.

        *expected* ascends.  A time at which one phase ends and the next begins belongs to the next.
        """
        through = np.floor(expected / self.expected) if self.repeat else np.zeros(len(expected))
        rest = expected - through * self.expected if self.repeat else expected[expected < self.expected]
        places = np.minimum(np.searchsorted(self._expected, rest, side="right"), len(self.phases) - 1)
        times = np.zeros(len(rest))
        for place in np.unique(places).tolist():
            here, before = places == place, self._expected[place - 1] if place else 0.0
            times[here] = self._begins[place] + self.phases[place].time(rest[here] - before)
        return times + through * self.length if self.repeat else times


_BLOCK = 4096


@frozen
class Arrivals:
    """Arrival times as `vllm bench serve` draws them; the first is always 0 s.

    "poisson", "gamma" and "constant" have a `rate` in requests/s; "burst" sends
    all requests at once.  `burstiness` is the shape of "gamma": the standard
    deviation of the gaps is 1 / sqrt(burstiness) of their mean, so 1 is Poisson and
    less is burstier.  `exact` stretches the times so that the last arrival fits the
    rate, as `vllm bench serve` does; without it, the rate of a short run varies.

    With `phases` the rate changes with time, and gaps are those of `process` at a rate of one, whose times are changed
    (see `ksim.workload.arrivals`).  Arrivals end with the phases.
    """

    #: A list in place of the table is that of its phases.
    listed: ClassVar[str] = "phases"

    process: str = field(default="poisson", validator=in_(("poisson", "gamma", "constant", "burst")))
    """Distribution of the gaps; burst sends all at once. Source: vllm bench serve."""
    rate: float | None = field(default=None, validator=optional(and_(gt(0), le(1e9))))
    """Mean rate; burst has none. Unit: requests/s. Default: required except for burst and with
    `phases`. Example: 10.0."""
    burstiness: float | None = field(default=None, validator=optional(and_(ge(1e-3), le(1e6))))
    """Shape of gamma: 1 is Poisson, less is burstier. Unit: ratio. Default: required for gamma. Source: vllm bench
    serve --burstiness. Example: 0.5."""
    exact: bool = False
    """Stretch the times so that the last arrival fits the rate, as `vllm bench serve` does."""
    phases: tuple[Phase, ...] = ()
    """Rates one after the other, in place of `rate`; a list of them may stand in place of the whole table.
    Example: [{rate = 15, for = "90 s"}, {rate = 2, to = 10, for = "60 s"}]."""
    repeat: bool = False
    """Begin again after the last phase, until there are `count` requests."""

    def __attrs_post_init__(self) -> None:
        if self.phases:
            self._check_phases()
        elif self.repeat:
            raise ValueError("repeat is of phases; leave it out, or give some")
        elif (self.rate is None) != (self.process == "burst"):
            raise ValueError(f"process {self.process!r} takes {'no' if self.rate else 'a'} rate")
        if (self.burstiness is None) == (self.process == "gamma"):
            raise ValueError(f"process {self.process!r} takes {'no' if self.burstiness else 'a'} burstiness")

    def _check_phases(self) -> None:
        options = {"rate": self.rate is not None, "exact": self.exact, "process = 'burst'": self.process == "burst"}
        if contradicted := [name for name, is_set in options.items() if is_set]:
            raise ValueError(f"phases say when requests arrive; leave out {contradicted[0]}")
        self.rates.check()

    @property
    def rates(self) -> Rates:
        """The rate over time; there must be phases."""
        return Rates(self.phases, self.repeat)

    @property
    def expected(self) -> float:
        """The expected number of arrivals, with the first one; infinite where they do not end."""
        return 1 + self.rates.expected if self.phases and not self.repeat else inf

    @property
    def mean(self) -> float | None:
        """The mean rate in requests/s; None for a burst."""
        return self.rates.mean if self.phases else self.rate

    def times(self, rng: "np.random.Generator", count: int) -> Iterator[float]:
        """Yield *count* times in seconds, ascending from 0."""
        if self.process == "burst":
            return repeat(0.0, count)
        if self.phases and not self.rates.constant:
            return islice(self._changing(rng), count)
        drawn = islice(self._stretched(rng, count) if self.exact else self._endless(rng), count)
        return takewhile(lambda time: time < self.rates.length, drawn) if self.phases and not self.repeat else drawn

    def _changing(self, rng: "np.random.Generator") -> Iterator[float]:
        """The times of a rate that changes, from those of a rate of one."""
        rates, now = self.rates, 0.0
        yield now
        while True:
            ones = now + np.cumsum(evolve(self, rate=1.0, phases=(), repeat=False)._gaps(rng, _BLOCK))
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
