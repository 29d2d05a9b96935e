"""The SM clock: state that follows power, and sets the pace of kernels that arithmetic bounds."""

from attrs import define, evolve, field, frozen

from ksim.flow.costs import ClockScaling, Scalable
from ksim.specs.power import Clocks, Power

#: Halvings of the range of clocks to find the one at which a GPU draws its limit: to 0.1 %, half of the 15 MHz that
#: clocks go by.
HALVINGS = 10
#: Paces at these clocks that are kept.
MOST_RUNGS = 1 << 14


@frozen
class Setting:
    """What a GPU is told to keep to: watts at most, and a clock (Hz) at most; None asks for nothing."""

    cap: float | None = None
    clock: float | None = None

    def within(self, other: "Setting") -> "Setting":
        """The stricter of both."""
        return Setting(_least(self.cap, other.cap), _least(self.clock, other.clock))


def _least(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else min(one, other)


FREE = Setting()


@define
class Clock:
    """One GPU's clock under its power limit; steps are given in the order in which they start.

    A GPU may draw more than its limit for a while: it has credit, in joules, that is spent above the limit and
    earned below it.  With credit, it runs at the boost clock, or the one that it is set to; without, at the one at
    which it draws just its limit, or the lowest.  Within a step, power is taken to be even.
    """

    power: Power
    clocks: Clocks
    _boost: ClockScaling = field(init=False)
    _credit: float = field(init=False)
    _busy_until: float = field(default=0.0, init=False)
    _rungs: dict[tuple[float, int], ClockScaling] = field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._boost, self._credit = self._at(self.clocks.boost), self.clocks.credit

    @classmethod
    def tired(cls, power: Power, clocks: Clocks) -> "Clock":
        """That of a GPU that has been at work for long, and never has credit."""
        return cls(power, evolve(clocks, credit=0.0))

    def pace(self, step_cost: Scalable, start: float, setting: Setting = FREE) -> ClockScaling:
        """How the GPU does in a step that begins at *start* (s), where it is told to keep to *setting*."""
        limit = setting.cap or self.power.limit
        free = self._at(setting.clock) if setting.clock else self._boost
        seconds, most = step_cost.seconds_at(free), self.clocks.credit
        watts = self._watts_over(seconds, step_cost, free)
        if watts <= limit and self._credit == most:  # nothing to spend, nothing to earn
            self._busy_until = start + seconds
            return free
        self._settle(max(0.0, start - self._busy_until), self.power.idle, limit)
        carried = 1.0 if watts <= limit else min(1.0, self._credit / ((watts - limit) * seconds))
        self._settle(carried * seconds, watts, limit)
        pace = free if carried == 1.0 else free.blended(self._limited(step_cost, free.clock, limit), carried)
        self._busy_until = start + step_cost.seconds_at(pace)
        return pace

    def watts(self, step_cost: Scalable, pace: ClockScaling) -> float:
        """What the GPU draws in a step at *pace*."""
        return self._watts_over(step_cost.seconds_at(pace), step_cost, pace)

    def _watts_over(self, seconds: float, step_cost: Scalable, pace: ClockScaling) -> float:
        """The same where it is known how many *seconds* the step takes at *pace*."""
        return float(self.power.idle + step_cost.joules_at(pace) / seconds if seconds else self.power.idle)

    def least_watts(self, step_cost: Scalable) -> float:
        """What the GPU draws in a step at its lowest clock, which is as little as it can."""
        return self.watts(step_cost, self._at(self.clocks.least))

    def _limited(self, step_cost: Scalable, high: float, limit: float) -> ClockScaling:
        """The pace at the highest clock below *high* at which a step keeps to its *limit*, or else at the lowest."""
        low, top = 0, 1 << HALVINGS
        while top - low > 1:
            middle = (low + top) // 2
            hot = self.watts(step_cost, self._rung(high, middle)) > limit
            low, top = (low, middle) if hot else (middle, top)
        return self._rung(high, low)

    def _rung(self, high: float, rung: int) -> ClockScaling:
        """The pace at one of the clocks that lie evenly between the lowest and *high*."""
        pace = self._rungs.get((high, rung))
        if pace is None:
            if len(self._rungs) >= MOST_RUNGS:  # governors may choose ever new clocks
                self._rungs.clear()
            least = self.clocks.least
            pace = self._rungs[high, rung] = self._at(least + (high - least) * rung / (1 << HALVINGS))
        return pace

    def _at(self, clock: float) -> ClockScaling:
        return ClockScaling(self.clocks.slowed(clock), self.clocks.saved(clock), self.clocks.drawn(clock), clock)

    def _settle(self, seconds: float, watts: float, limit: float) -> None:
        self._credit = min(self.clocks.credit, max(0.0, self._credit + (limit - watts) * seconds))
