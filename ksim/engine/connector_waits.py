"""How an engine whose steps are SimPy events waits for what its KV connector has under way."""

from collections.abc import Generator
from math import inf, nextafter
from typing import Any

import simpy
from attrs import define, field

from ksim.engine.engine import Engine, Process
from ksim.engine.workers import Workers
from ksim.scheduling.engine_loop import Turn
from ksim.scheduling.job import Job
from ksim.scheduling.schedule import Schedule

#: A process that returns when something was or will be.
Until = Generator[simpy.Event, Any, float]


@define(eq=False, kw_only=True)
class ConnectorWaits(Engine):
    """Its requests that have come wait in an inbox; its workers' threads launch its steps."""

    _threads: Workers = field(init=False)
    _inbox: list[Job] = field(factory=list, init=False)

    @property
    def _called(self) -> bool:
        """Whether there is something in the inbox for the next turn."""
        return bool(self._inbox)

    def _launch_nothing(self, schedule: Schedule, now: float) -> Until:
        """Tell the workers of a schedule without a batch; return when they have it."""
        assert self.connector is not None, "only workers that copy are told"
        making = self.host.core.making(0, 0, self.workers)
        if schedule.hurried:
            yield from self._hurry(schedule, now + making)
            making = max(0.0, now + making - self.env.now)
        yield self.env.timeout(making)
        self.connector.launch(schedule, now, self.env.now, self._computed)
        return self.env.now

    def _hurry(self, schedule: Schedule, ready: float) -> Until:
        """Wait for the copies that must end before the batch of *schedule* runs; return when it can, or *ready*."""
        assert self.connector is not None, "only connectors copy"
        if ended := self.connector.hurry(schedule, max(ready, self._threads.free), self._computed):
            yield ended
        return max(ready, self.env.now if ended else 0.0)

    @property
    def _computed(self) -> simpy.Event | None:
        """What fires when the GPUs have computed the latest batch that was sent; None if they have."""
        sent = [turn.work.in_flight for turn in self._loop.in_flight if turn.work and turn.work.in_flight]
        return None if not sent or sent[-1].done.processed else sent[-1].done

    def _take_report(self, turn: Turn) -> Process:
        """Give *turn* what the workers report with it."""
        if self.connector is not None and self.scheduler.transfers_pending:
            yield self.env.quiet_before(nextafter(turn.launched, inf))
            turn.output = self.connector.report(turn.launched)

    def _sleep_through_transfers(self, turn: Turn) -> Process:
        """Wait for a request, or for the end of a transfer, which is reported with *turn*."""
        env, connector, slept = self.env, self.connector, not self._called
        assert connector is not None, "only an engine with a connector waits for transfers"
        while not self._called and connector.due > env.now:
            self._news = env.event()
            yield self._news
        yield env.quiet_before(nextafter(env.now, inf))  # more may end at this moment
        if connector.due > env.now:
            yield env.timeout(self.host.core.wake if slept else 0.0)
            return
        turn.output = connector.report(env.now)
        yield env.timeout(self._polling)
