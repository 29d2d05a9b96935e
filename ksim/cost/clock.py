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
        """How many times as long as the oracle says clocked kernels take in a step that begins at *start* seconds."""
        power, boost = self.power, self.boost
        self._settle(max(0.0, start - self._busy_until), power.idle)
        seconds = timeline.paced(boost.pace)
        dynamic = self._dynamic(timeline) / seconds
        room = power.limit - power.idle
        excess = (dynamic - room) * seconds
        carried = 1.0 if excess <= 0.0 else min(1.0, self._credit / excess)
        pace = boost.pace * (carried + (1.0 - carried) * max(1.0, dynamic / room) ** boost.slowing)
        self._settle(carried * seconds, power.idle + dynamic)
        self._busy_until = start + timeline.paced(pace)
        return pace

    def _dynamic(self, timeline: Timeline) -> float:
        """Joules of the step at the boost clock, beyond idle power: what is clocked then needs a higher voltage."""
        return timeline.joules * (1.0 + timeline.clocked / timeline.seconds * (self.boost.energy - 1.0))

    def _settle(self, seconds: float, watts: float) -> None:
        self._credit = min(self.boost.credit, max(0.0, self._credit + (self.power.limit - watts) * seconds))
