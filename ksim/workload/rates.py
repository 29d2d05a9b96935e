"""Rates of arrivals that change with time: phases one after the other, or a table of rates, and spikes on top.

A phase is constant, a ramp or a sine.  Between the points of a table there are such phases.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from math import inf, isfinite, pi
from pathlib import Path

import numpy as np
from attrs import evolve, field, frozen
from attrs.validators import ge, gt, le, optional
from numpy.typing import NDArray

from ksim.foundation.errors import DataError
from ksim.foundation.files import FileVersion, regular_file, version
from ksim.foundation.units import LONGEST, Seconds, optional_quantity, quantity
from ksim.workload.lines import Lines
from ksim.workload.rows import columns, moment, number_of, shown

__all__ = ["Phase", "RateAt", "Rates", "Spike", "check_order", "phases_between", "phases_of", "scaled"]


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
class RateAt:
    """A row of a table of rates: the rate at a time."""

    at: Seconds = field(converter=quantity, validator=(ge(0.0), le(LONGEST)))
    """When it is, from the start on. Unit: s."""
    rate: float = field(validator=(ge(0.0), le(_MOST)))
    """Rate of arrivals at that time. Unit: requests/s."""


@frozen
class Spike(RateAt):
    """Arrivals that come on top of all others for a while."""

    rate: float = field(validator=(gt(0.0), le(_MOST)))
    """How much the rate rises. Unit: requests/s."""
    for_: Seconds = field(converter=quantity, validator=(gt(0.0), le(LONGEST)))
    """How long it lasts. Unit: s."""

    @property
    def phases(self) -> "tuple[Phase, ...]":
        """The rate of its arrivals alone."""
        return *((Phase(0.0, self.at),) if self.at else ()), Phase(self.rate, self.for_)


def check_order(before: RateAt, point: RateAt, steps: bool) -> None:
    """Raise ValueError for a *point* that cannot follow the one *before*."""
    if point.at < before.at or (steps and point.at == before.at):
        raise ValueError(f"is at {point.at:g} s, and the one before it at {before.at:g} s; put them in order"
                         f"{', each at a time of its own' if steps else ''}")


def phases_between(points: Sequence[RateAt], steps: bool) -> tuple[Phase, ...]:
    """The phases between *points* in order: ramps, or in *steps* constant rates, the last as long as the one before it.

    Raises ValueError for points that make none.
    """
    if len(points) < 2 or points[0].at > 0 or points[-1].at == 0:
        raise ValueError("has no times to go between; give two points or more, the first at 0 s")
    ends = [*(point.at for point in points[1:]), *([2 * points[-1].at - points[-2].at] if steps else [])]
    rates = [point.rate for point in (points if steps else [*points[1:], points[-1]])]
    made = tuple(Phase(point.rate, end - point.at, None if rate == point.rate else rate)
                 for point, end, rate in zip(points, ends, rates, strict=False) if end > point.at)
    if not made[0].rate and not made[0].to:
        raise ValueError("begins with a rate of 0, and the first request arrives at 0 s; begin with one above 0")
    return made


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

    def expected_by(self, times: Floats) -> Floats:
        """The arrivals to expect up to each of *times*, in seconds, once through."""
        places = np.minimum(np.searchsorted(self._begins, times, side="right"), len(self.phases)) - 1
        expected = np.zeros(len(times))
        for place in np.unique(places).tolist():
            here, phase = places == place, self.phases[place]
            before = self._expected[place - 1] if place else 0.0
            expected[here] = before + phase.integral(np.minimum(times[here] - self._begins[place], phase.length))
        return expected

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


def phases_of(path: Path, steps: bool) -> tuple[Phase, ...]:
    """The phases of the table of rates in a file of CSV; raises DataError, with file and line."""
    return _read(path, steps, version(regular_file(path)))


@lru_cache(maxsize=8)
def _read(path: Path, steps: bool, _version: FileVersion) -> tuple[Phase, ...]:
    """The same, read once in a process."""
    lines, points = Lines(path), list[RateAt]()
    for time, rate in columns(lines, ("time", "rate")):
        points.append(_point(time, rate, lines))
        try:
            for before, point in pairwise(points[-2:]):
                check_order(before, point, steps)
        except ValueError as error:
            raise lines.error(str(error)) from None
    try:
        return phases_between(points, steps)
    except ValueError as error:
        raise DataError(str(path), str(error)) from None


def _point(time: str, rate: str, lines: Lines) -> RateAt:
    at, number = moment(time, "time", lines), number_of(rate)
    if not 0 <= number <= _MOST:
        raise lines.error(f"rate is {shown(rate)}; expected requests/s, from 0 to {_MOST:g}")
    if at > LONGEST:
        raise lines.error(f"time is {shown(time)}; expected at most {LONGEST:g} s, which is 31 years")
    return RateAt(at, number)


def scaled(phases: Sequence[Phase], rate: float | None) -> Sequence[Phase]:
    """*phases* with a mean *rate*; as they are where that is None."""
    if rate is None:
        return phases
    factor = rate / Rates(phases).mean
    return [evolve(phase, rate=factor * phase.rate, to=None if phase.to is None else factor * phase.to)
            for phase in phases]
