"""The costs of kernels and steps, and how the SM clock scales them: seconds, joules, FLOP and bytes in one table."""

from collections.abc import Iterable, Iterator, Sequence
from math import nan
from operator import attrgetter
from typing import Any

import numpy as np
from attrs import define, field, fields, frozen
from numpy.typing import NDArray

__all__ = ["AT_BOOST", "JOULES", "ClockScaling", "Scalable", "Costed", "Costs", "StepSummary", "NAMES"]


@frozen
class ClockScaling:
    """Factors by which a GPU's SM clock changed a step: numbers of one step, or columns of (steps,).

    Kernels that the SM clock paces took `time` times as long as at the boost clock.  The SMs' actions took `energy`
    times the joules, and busy SMs drew `power` times the watts.  `clock` is the mean clock in Hz, nan where unknown.
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
        """The columns of many *scalings*."""
        rows = [(scaling.time, scaling.energy, scaling.power, scaling.clock) for scaling in scalings]
        return cls(*np.array(rows, dtype=np.float64).reshape(-1, 4).T.copy())

    def __getitem__(self, row: int) -> "ClockScaling":
        """The scaling of one step, where this one has columns."""
        return ClockScaling(*(float(getattr(self, each.name)[row]) for each in fields(ClockScaling) if each.init))

    def taken(self, rows: Any) -> "ClockScaling":
        """The scalings of the steps at *rows*, where this one has columns."""
        return ClockScaling(self.time[rows], self.energy[rows], self.power[rows], self.clock[rows])

    def blended(self, other: "ClockScaling", share: float) -> "ClockScaling":
        """The scaling of a step that has this one for a *share* of its time, and the *other* for the rest."""
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


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The numbers of `Costs`, in the order of their rows.
NAMES: list[str] = []


class CostNumber:
    """A row of a table of `Costs`: a float of one thing, a column of several."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.row = len(NAMES)
        NAMES.append(name)

    def __get__(self, costs: "Costs", owner: type | None = None) -> Any:
        table = costs.table
        return table.item(self.row) if table.ndim == 1 else table[self.row]


class Costs(Scalable):
    """The costs to one rank of a kernel, a block or a step, or of each of many: one table of numbers.

    The table has a row for each number.  It has a column for each kernel or step, or none where it is of one alone.
    All are at the boost clock.  To add a number, add a line here, and its value where the pricer makes costs.
    """

    __slots__ = ("table",)

    seconds: Any = CostNumber()
    #: Beyond idle power.
    joules: Any = CostNumber()
    flops: Any = CostNumber()
    #: Traffic to and from device memory.
    bytes: Any = CostNumber()
    #: Seconds of kernels whose shapes lie outside what was measured.
    extrapolated: Any = CostNumber()
    #: Seconds of kernels that compute limits, and so the SM clock paces.
    compute_bound: Any = CostNumber()
    #: Of the joules, those that SMs and their caches take for what they do.
    sm_action_joules: Any = CostNumber()
    #: Of the joules, those that SMs draw while they do anything.
    sm_active_joules: Any = CostNumber()
    #: Of the latter, those of kernels that compute limits.
    compute_bound_joules: Any = CostNumber()
    #: How far the 90 % interval of the seconds reaches down and up, nan where nobody knows.
    below: Any = CostNumber()
    above: Any = CostNumber()

    def __init__(self, table: Floats) -> None:
        self.table = table

    @classmethod
    def of(cls, **numbers: Any) -> "Costs":
        """Costs with these *numbers*, columns where seconds are columns, and 0 for all others."""
        if not isinstance(seconds := numbers.get("seconds", 0.0), np.ndarray):
            assert numbers.keys() <= _ROWS.keys(), f"costs are {', '.join(NAMES)}"
            return cls(np.array([numbers.get(name, 0.0) for name in NAMES], np.float64))
        table = np.zeros((len(NAMES), *seconds.shape))
        for name, value in numbers.items():
            table[_ROWS[name]] = value
        return cls(table)

    @classmethod
    def stacked(cls, rows: Iterable["Costs"]) -> "Costs":
        """The columns of costs that are of one thing each."""
        tables = [costs.table for costs in rows]
        return cls(np.array(tables).T.copy() if tables else np.zeros((len(NAMES), 0)))

    @classmethod
    def joined(cls, pieces: Sequence["Costs"]) -> "Costs":
        """The columns of all *pieces*, one after another."""
        return cls(np.concatenate([np.zeros((len(NAMES), 0)), *(piece.table for piece in pieces)], axis=1))

    @property
    def low(self) -> Any:
        """The lower end of the 90 % interval of the seconds."""
        return self.seconds - self.below

    @property
    def high(self) -> Any:
        return self.seconds + self.above

    def __add__(self, other: "Costs") -> "Costs":
        """The sum, where kernels of one family err together: their intervals add up."""
        return Costs(self.table + other.table)

    def __mul__(self, repeat: Any) -> "Costs":
        """*repeat* times the costs: a number, or one for each column."""
        return Costs(self.table * repeat)

    __rmul__ = __mul__

    def sum(self) -> "Costs":
        """The sum over all columns."""
        return Costs(self.table.sum(axis=1))

    def with_reach(self, families: Iterable[Any]) -> "Costs":
        """These costs with the interval of kernels of several *families*, given the `reach` of each.

        Kernels of one family err together, so their intervals add up.  Families err independently: their
        intervals together are the root of the sum of squares.
        """
        table = self.table.copy()
        table[_REACH] = np.sqrt(sum(reach * reach for reach in families))
        return Costs(table)

    @property
    def reach(self) -> Floats:
        """The distances from the seconds to the lower and the upper end of their interval."""
        return self.table[_REACH]

    def replaced(self, **numbers: Any) -> "Costs":
        """These costs with other *numbers*."""
        table = self.table.copy()
        for name, value in numbers.items():
            table[_ROWS[name]] = value
        return Costs(table)

    def __len__(self) -> int:
        return int(self.table.shape[1])

    def __getitem__(self, rows: Any) -> "Costs":
        """The costs of one kernel or step, or of some."""
        return Costs(self.table[:, rows].copy())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Costs) and self.table.tobytes() == other.table.tobytes()

    def __hash__(self) -> int:
        return hash(self.table.tobytes())

    def __repr__(self) -> str:
        return f"Costs({', '.join(f'{name}={getattr(self, name)!r}' for name in NAMES)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Costs, (self.table,)


class Costed(Scalable):
    """A class with `costs` of one thing, whose numbers are attributes of its own."""

    __slots__ = ()

    costs: Costs
    seconds: float
    joules: float
    flops: float
    bytes: float
    extrapolated: float
    below: float
    above: float
    low: float
    high: float


_ROWS = {name: row for row, name in enumerate(NAMES)}
_REACH = slice(_ROWS["below"], _ROWS["above"] + 1)
for _name in (*NAMES, "low", "high"):
    setattr(Costed, _name, property(attrgetter(f"costs.{_name}")))


@define(eq=False)
class StepSummary(Scalable):
    """The few costs of a step that its duration depends on, named as in `Costs`: numbers, or columns of many steps.

    With columns, it is a sequence of the summaries of single steps; a number stands for a column of equal values.
    """

    seconds: Any
    joules: Any
    compute_bound: Any
    sm_action_joules: Any
    sm_active_joules: Any
    compute_bound_joules: Any
    #: CPU seconds of the host to launch the step.
    launch_seconds: Any = 0.0

    @classmethod
    def of(cls, costs: Costs, launch_seconds: Any) -> "StepSummary":
        return cls(costs.seconds, costs.joules, costs.compute_bound, costs.sm_action_joules, costs.sm_active_joules,
                   costs.compute_bound_joules, launch_seconds)

    def __add__(self, other: "StepSummary") -> "StepSummary":
        """The summary of both steps, one after the other."""
        return StepSummary(
            self.seconds + other.seconds, self.joules + other.joules, self.compute_bound + other.compute_bound,
            self.sm_action_joules + other.sm_action_joules, self.sm_active_joules + other.sm_active_joules,
            self.compute_bound_joules + other.compute_bound_joules, self.launch_seconds + other.launch_seconds)

    @classmethod
    def stacked(cls, steps: Sequence["StepSummary"]) -> "StepSummary":
        """The columns of *steps*, of which there is one at least."""
        return cls(*np.array([_parts(step) for step in steps], dtype=np.float64).T.copy())

    def plus(self, rows: Sequence[int], others: "StepSummary") -> "StepSummary":
        """The columns where each of *others* comes after the step of one of *rows*."""
        columns = [np.broadcast_to(column, len(self)).copy() for column in _parts(self)]
        for column, further in zip(columns, _parts(others), strict=True):
            column[rows] += further
        return StepSummary(*columns)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, row: int) -> "StepSummary":
        return StepSummary(*(column.item(row) if isinstance(column, np.ndarray) else column
                             for column in _parts(self)))

    def __iter__(self) -> Iterator["StepSummary"]:
        columns = [column.tolist() if isinstance(column, np.ndarray) else [column] * len(self)
                   for column in _parts(self)]
        return (StepSummary(*row) for row in zip(*columns, strict=True))


#: The numbers of a summary, in order.
_parts = attrgetter(*(each.name for each in fields(StepSummary)))
