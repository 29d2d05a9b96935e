"""The SM clock: state that follows power, and sets the pace of kernels that arithmetic bounds."""

from attrs import define, field

from ksim.flow.timeline import Timeline
from ksim.specs.hardware import Boost, Power


@define
class Clock:
    """One GPU's clock under its power limit; steps are given in the order in which they start.

    A GPU may draw more than its limit for a while: it has credit, in joules, that is spent above the limit and
    earned below it.  With credit, clocked kernels run at the boost clock; without, at the one at which the GPU
    draws just its limit.  Within a step, power is taken to be even.
    """

    power: Power
    boost: Boost
    _credit: float = field(init=False)
    _busy_until: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._credit = self.boost.credit

    def pace(self, timeline: Timeline, start: float) -> float:
        """How many times as long as at the boost clock clocked kernels take in a step that begins at *start* (s)."""
        power, boost = self.power, self.boost
        self._settle(max(0.0, start - self._busy_until), power.idle)
        dynamic, room = self._dynamic(timeline), power.limit - power.idle
        excess = dynamic - room * timeline.seconds
        carried = 1.0 if excess <= 0.0 else min(1.0, self._credit / excess)
        slowest: float = max(1.0, dynamic / (room * timeline.seconds)) ** boost.slowing
        pace = carried + (1.0 - carried) * slowest
        self._settle(carried * timeline.seconds, power.idle + dynamic / timeline.seconds)
        self._busy_until = start + timeline.paced(pace)
        return pace

    def _dynamic(self, timeline: Timeline) -> float:
        """Joules of the step at the boost clock, beyond idle power: what is clocked then needs a higher voltage."""
        return timeline.joules * (1.0 + timeline.clocked / timeline.seconds * (self.boost.energy - 1.0))

    def _settle(self, seconds: float, watts: float) -> None:
        self._credit = min(self.boost.credit, max(0.0, self._credit + (self.power.limit - watts) * seconds))
