"""An environment in which a process may go ahead of the clock, as long as nothing happens that it must know of."""

from heapq import heappop, heappush
from itertools import count

import simpy


class Horizon(simpy.Environment):
    """SimPy's environment, and processes that wait until nothing is left to happen before some moment.

    They hold nobody up: what they wait for is that the next event is no earlier.  So two of them never wait for each
    other, as they would if each had an event of its own at the moment that the other waits for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[float, int, simpy.Event]] = []
        self._tickets = count()
        #: Whether those who wait may, once they go on, cause something that others must know of.
        self.coupled = False

    @property
    def news(self) -> float:
        """When something may happen next, of which one that goes ahead knows nothing yet; inf where nothing will."""
        if self.coupled and self._waiting:
            return min(self.peek(), self._waiting[0][0])
        return self.peek()

    def quiet_before(self, moment: float) -> simpy.Event:
        """Fires when nothing is left that happens before *moment*."""
        event = self.event()
        heappush(self._waiting, (moment, next(self._tickets), event))
        return event

    def step(self) -> None:
        if self._waiting and self.peek() >= self._waiting[0][0]:
            heappop(self._waiting)[-1].succeed()
        super().step()
