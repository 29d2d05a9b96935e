"""The turns of an engine as its scheduler decides them, which need not be known when they are."""

from collections import deque
from collections.abc import Callable, Sequence
from math import nan

from attrs import define, field

from ksim.engine.engine import Change
from ksim.flow.batch import Batch, Contexts
from ksim.scheduling.job import Job
from ksim.scheduling.schedule import Schedule
from ksim.scheduling.schedule_forecast import ScheduleForecast
from ksim.scheduling.scheduler import Scheduler

__all__ = ["FURTHEST", "Turn", "Turns", "going_on"]

#: Turns foreseen at most in one go.
FURTHEST = 512


@define(eq=False)
class Turn:
    """What a turn does: who comes and goes, and the batch that it sends, if any, which `touched` so many blocks.

    Then as many jobs wait and run, and as many blocks are used.  If the turn `completes` the oldest batch, some jobs
    are `finished`.
    """

    changes: Sequence[Change]
    batch: Batch | None
    touched: int
    waiting: int
    running: int
    blocks: int
    completes: bool
    finished: Sequence[Job] = ()


@define(eq=False)
class Turns:
    """What `scheduler` decides.  `in_flight` batches are not taken in yet, None where a turn sent none; `steps` are.

    `changes` says what an schedule means for those who come and go.
    """

    scheduler: Scheduler
    changes: Callable[[Schedule], Sequence[Change]]
    forecast: ScheduleForecast = field(init=False)
    in_flight: deque[Schedule | None] = field(factory=deque, init=False)
    steps: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.forecast = ScheduleForecast(self.scheduler)

    def touched(self, schedule: Schedule, batch: Batch) -> int:
        """How many KV blocks the *batch* of *schedule* looks up or fills for prompts."""
        return schedule.touched(self.scheduler.cache.block_tokens) if batch.prompts else 0

    def oldest(self) -> Schedule | None:
        """What has to be taken in now, if anything: as many batches are in flight as may be."""
        return self.in_flight.popleft() if len(self.in_flight) >= self.scheduler.limits.depth else None

    def take_in(self, schedule: Schedule) -> list[Job]:
        """Take in what the oldest batch has computed; return the jobs now done."""
        self.steps += 1
        return self.scheduler.update(schedule, self.steps - 1)

    def resume(self) -> None:
        """Be where one is after turns that were but repeated."""
        self.forecast.sync(self.steps - 1)
        if self.in_flight:
            self.in_flight[0] = self.forecast.latest()

    def decide(self, turns: list[Turn]) -> Schedule | None:
        """Add a turn whose time does not matter to *turns*, and those that only go on with its batch; return its
        schedule if there is nothing to do."""
        scheduler, in_flight = self.scheduler, self.in_flight
        schedule = scheduler.schedule(nan)
        batch = schedule.batch() if schedule else None
        if batch is None and not any(in_flight):
            in_flight.clear()
            turns.append(Turn(self.changes(schedule), None, 0, 0, 0, 0, completes=False))
            return schedule
        state = len(scheduler.waiting), len(scheduler.running), scheduler.cache.pool.used
        changes, touched = self.changes(schedule), self.touched(schedule, batch) if batch else 0
        in_flight.append(schedule if batch else None)
        oldest = self.oldest()
        finished = self.take_in(oldest) if oldest else ()
        turns.append(Turn(changes, batch, touched, *state, oldest is not None, finished))
        if batch and (more := self.forecast.repeats_left()) > 1:
            self._decide_alike(turns, batch, min(more, FURTHEST - len(turns)))
        return None

    def _decide_alike(self, turns: list[Turn], batch: Batch, more: int) -> None:
        """Take so many *more* turns that only go on with *batch*, if there are blocks for them."""
        pool = self.scheduler.cache.pool
        waiting, running = len(self.scheduler.waiting), len(self.scheduler.running)
        for after in going_on(batch, more):
            if not self.forecast.repeat():
                break
            turns.append(Turn((), after, 0, waiting, running, pool.used, completes=True))
            self.steps += 1
        self.resume()


def going_on(batch: Batch, turns: int) -> list[Batch]:
    """The batches of so many *turns* after *batch*, each of which has one more token in the cache."""
    offsets, shift = batch.contexts.offsets, batch.contexts.shift
    count = len(offsets)
    return [Batch(Contexts(offsets, shift + turn), (), count, count) for turn in range(1, turns + 1)]
