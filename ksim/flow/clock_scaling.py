"""How the SM clock scales the seconds and joules of kernels and steps."""

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
from attrs import field, fields, frozen

__all__ = ["AT_BOOST", "JOULES", "ClockScaling", "Scalable"]


@frozen
class ClockScaling:
    """How a GPU's SM clock changed a step: numbers of one step, or columns of (steps,).

    What the SM clock scalings took `time` times as long as at the boost clock.  SMs spent `energy` times the joules on
    what they did, and drew `power` times the watts while they did anything.  `clock` is their mean clock in Hz, nan
    where it is not known.
    """

    time: Any = 1.0
    energy: Any = 1.0
    power: Any = 1.0
    clock: Any = field(default=nan, eq=False)
    #: By how much of each of `JOULES` the joules differ from those at the boost clock.
    joule_factors: tuple[Any, Any, Any] = field(init=False, eq=False, repr=False)

    @joule_factors.default
    def _joule_factors(self) -> tuple[Any, Any, Any]:
        return self.energy - 1.0, self.power - 1.0, self.power * (self.time - 1.0)

    @classmethod
    def of(cls, scalings: Sequence["ClockScaling"]) -> "ClockScaling":
        """The columns of many."""
        rows = [(scaling.time, scaling.energy, scaling.power, scaling.clock) for scaling in scalings]
        return cls(*np.array(rows, dtype=np.float64).reshape(-1, 4).T.copy())

    def __getitem__(self, row: int) -> "ClockScaling":
        """That of one step, where this has columns."""
        return ClockScaling(*(float(getattr(self, each.name)[row]) for each in fields(ClockScaling) if each.init))

    def blended(self, other: "ClockScaling", share: float) -> "ClockScaling":
        """This for a *share* of a step, and the *other* for the rest of it."""
        rest = 1.0 - share
        time = share * self.time + rest * other.time
        return ClockScaling(time, share * self.energy + rest * other.energy,
                            (share * self.time * self.power + rest * other.time * other.power) / time,
                            share * self.clock + rest * other.clock)


AT_BOOST = ClockScaling()
#: The joules that the SM clock changes, in the order of `ClockScaling.joule_factors`.
JOULES = ("sm_action_joules", "sm_active_joules", "compute_bound_joules")


class Scalable:
    """Seconds and joules at any SM clock: of one step or kernel, or columns of many."""

    __slots__ = ()

    seconds: Any
    joules: Any
    compute_bound: Any
    sm_action_joules: Any
    sm_active_joules: Any
    compute_bound_joules: Any

    def seconds_at(self, scaling: ClockScaling) -> Any:
        return self.seconds + (scaling.time - 1.0) * self.compute_bound

    def joules_at(self, scaling: ClockScaling) -> Any:
        """Joules beyond idle power."""
        action, active, slowed = scaling.joule_factors
        changed = active * self.sm_active_joules + slowed * self.compute_bound_joules
        return self.joules + action * self.sm_action_joules + changed
