"""A SimPy environment in which a process may go ahead of the clock, up to the next event that may concern it."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

import simpy


class Horizon(simpy.Environment):
    """SimPy's environment, and processes that wait until no event is left before some moment.

    Such a process holds nobody up: it waits for the next event to be no earlier.  So two of them never wait for each
    other, as they would if each had an event of its own at the moment that the other waits for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[float, int, simpy.Event]] = []
        self._tickets = count()
        #: Whether processes that wait may cause events, once they go on, that concern others.
        self.coupled = False
        #: Before when nothing that an engine does concerns others, by the numbers of those that say so; inf while one
        #: goes on, or sleeps until an event wakes it.
        self.promises: dict[int, float] = {}
        #: When the next request comes from a user; -inf where that depends on what engines do.
        self.next_request = -inf

    @property
    def news(self) -> float:
        """When the next event may happen that a process going ahead does not know of; inf if none will."""
        if self.coupled:
            if self.promises:
                return min(self.peek(), *self.promises.values())
            if self._waiting:
                return min(self.peek(), self._waiting[0][0])
        return self.peek()

    @property
    def due(self) -> float:
        """When the next event happens, if none is scheduled before; inf without any."""
        return min(self.peek(), self._waiting[0][0]) if self._waiting else self.peek()

    def call_at(self, moment: float, callback: Callable[[], None]) -> None:
        """Call *callback* at this very *moment*, which is yet to come: a timeout would round it."""
        event = self.event()
        event._ok, event._value = True, None
        event.callbacks = [lambda _: callback()]
        heappush(self._queue, (moment, simpy.events.NORMAL, next(self._eid), event))

    def quiet_before(self, moment: float) -> simpy.Event:
        """An event that fires when no other event is left before *moment*."""
        event = self.event()
        heappush(self._waiting, (moment, next(self._tickets), event))
        return event

    def step(self) -> None:
        if self._waiting and self.peek() >= self._waiting[0][0]:
            heappop(self._waiting)[-1].succeed()
        super().step()
