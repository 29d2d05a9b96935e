"""Replicas by the time of day and the day of the week: cron-like, as KEDA's cron trigger has them."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import define, field, frozen
from attrs.validators import ge, min_len

from ksim.autoscaling import Decision, Observation
from ksim.foundation.units import Seconds, quantity

__all__ = ["Schedule"]

#: Of a cron expression: its fields, with their least and most values.
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of the month", 1, 31), ("month", 1, 12), ("day of the week", 0, 7))
_MINUTE, _DAY, _WEEK = 60, 24 * 60, 7 * 24 * 60
_NAMES = {name: str(number) for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}


@frozen
class Cron:
    """The minutes of a week at which a cron expression is due, in order; days of months and months must be `*`."""

    minutes: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> "Cron":
        """Raise ValueError for what is no expression of five fields, or names days of months."""
        parts = text.split()
        if len(parts) != len(_FIELDS):
            raise ValueError(f"{text!r} is no cron expression of five fields, such as '0 8 * * 1-5'")
        if parts[2] != "*" or parts[3] != "*":
            raise ValueError(f"{text!r} names days of months; a run knows days of the week alone, so write * there")
        minutes, hours, _, _, days = (_values(part, *limits) for part, limits in zip(parts, _FIELDS, strict=True))
        return cls(tuple(sorted({day % 7 * _DAY + hour * 60 + minute for day in days for hour in hours
                                 for minute in minutes})))

    def since(self, minute: int) -> int:
        """Minutes since it was due last, at a *minute* of the week."""
        return (minute - self.minutes[bisect_right(self.minutes, minute) - 1]) % _WEEK


def _values(part: str, name: str, least: int, most: int) -> list[int]:
    """The values of a field: `*`, numbers, ranges and steps, in a list."""
    found: list[int] = []
    for piece in part.split(","):
        span, _, step = piece.partition("/")
        low, _, high = span.partition("-")
        low, high = (_NAMES.get(value.lower(), value) for value in (low, high))
        first, last = (str(least), str(most)) if span == "*" else (low, high or (str(most) if step else low))
        if not (first.isdecimal() and last.isdecimal() and (not step or (step.isdecimal() and int(step)))):
            raise ValueError(f"{piece!r} is no {name} of a cron expression")
        if not least <= int(first) <= int(last) <= most:
            raise ValueError(f"{piece!r} is no {name} from {least} to {most}")
        found += range(int(first), int(last) + 1, int(step or 1))
    return found


@frozen
class Period:
    """From each minute of `start` to the next of `end`, so many `replicas`; both are cron expressions."""

    start: str
    end: str
    replicas: int = field(validator=ge(0))
    pool: str = ""
    _starts: Cron = field(init=False)
    _ends: Cron = field(init=False)

    def __attrs_post_init__(self) -> None:
        for name, text in (("_starts", self.start), ("_ends", self.end)):
            object.__setattr__(self, name, Cron.of(text))

    def holds(self, minute: int) -> bool:
        """Whether it holds at a *minute* of the week: the last of its minutes was a start, and no end."""
        return self._starts.since(minute) < self._ends.since(minute)


@define
class Schedule:
    """The largest of the periods that hold counts, of a pool or of all; `replicas` at any other time.

    A run begins at `begins`, such as "mon 06:30"; its days have 24 hours.
    """

    source: ClassVar[str] = "KEDA 2.20.1, the cron trigger; cron(8)"
    replicas: int = field(validator=ge(0))
    periods: Sequence[Period] = field(validator=min_len(1))
    begins: str = "mon 00:00"
    interval: Seconds = field(default=60.0, converter=quantity)
    _first: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        day, _, clock = self.begins.lower().partition(" ")
        hour, _, minute = clock.partition(":")
        if day not in _NAMES or not (hour.isdecimal() and minute.isdecimal()) or int(hour) > 23 or int(minute) > 59:
            raise ValueError(f"begins {self.begins!r} is no time of a week such as 'mon 06:30'")
        self._first = int(_NAMES[day]) * _DAY + int(hour) * 60 + int(minute)

    @property
    def min_replicas(self) -> int:
        """The fewest that it asks for."""
        return min([self.replicas, *(period.replicas for period in self.periods)])

    def decide(self, seen: Observation) -> Decision | None:
        minute = (self._first + int(seen.now // _MINUTE)) % _WEEK
        wanted = {name: self._at(minute, name) for name in seen.pools}
        changed = {name: count for name, count in wanted.items() if count != seen.pools[name].wanted}
        return Decision(changed, f"it is {self._said(minute)}") if changed else None

    def _at(self, minute: int, pool: str) -> int:
        held = [period.replicas for period in self.periods if period.pool in ("", pool) and period.holds(minute)]
        return max(held, default=self.replicas)

    def _said(self, minute: int) -> str:
        day, rest = divmod(minute, _DAY)
        names: Mapping[str, str] = {number: name for name, number in _NAMES.items()}
        return f"{names[str(day)]} {rest // 60:02}:{rest % 60:02}"
