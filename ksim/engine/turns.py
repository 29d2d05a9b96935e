"""The turns of an engine as its scheduler decides them, which need not be known when they are."""

from collections import deque
from collections.abc import Callable, Sequence
from math import nan

from attrs import define, field

from ksim.engine.engine import Change
from ksim.flow.batch import Batch, Contexts
from ksim.scheduling.assignment import Assignment
from ksim.scheduling.encore import Encore
from ksim.scheduling.job import Job
from ksim.scheduling.scheduler import Scheduler

__all__ = ["FURTHEST", "Turn", "Turns", "going_on"]

#: Turns foreseen at most in one go.
FURTHEST = 512


@define(eq=False)
class Turn:
    """What a turn does: who comes and goes, and the batch that it sends, if any, which `touched` so many blocks.

    Then as many jobs wait and run, and as many blocks are used.  If it `lands` the oldest batch, some are `finished`.
    """

    changes: Sequence[Change]
    batch: Batch | None
    touched: int
    waiting: int
    running: int
    blocks: int
    lands: bool
    finished: Sequence[Job] = ()


@define(eq=False)
class Turns:
    """What `scheduler` decides.  `flying` batches are not taken in yet, None where a turn sent none; `steps` are.

    `changes` says what an assignment means for those who come and go.
    """

    scheduler: Scheduler
    changes: Callable[[Assignment], Sequence[Change]]
    encore: Encore = field(init=False)
    flying: deque[Assignment | None] = field(factory=deque, init=False)
    steps: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.encore = Encore(self.scheduler)

    def touched(self, assignment: Assignment, batch: Batch) -> int:
        """How many KV blocks the *batch* of *assignment* looks up or fills for prompts."""
        return assignment.touched(self.scheduler.cache.block_tokens) if batch.prompts else 0

    def oldest(self) -> Assignment | None:
        """What has to be taken in now, if anything: as many batches are in flight as may be."""
        return self.flying.popleft() if len(self.flying) >= self.scheduler.limits.depth else None

    def take_in(self, assignment: Assignment) -> list[Job]:
        """Take in what the oldest batch has computed; return the jobs now done."""
        self.steps += 1
        return self.scheduler.update(assignment, self.steps - 1)

    def resume(self) -> None:
        """Be where one is after turns that were but repeated."""
        self.encore.come_back(self.steps - 1)
        if self.flying:
            self.flying[0] = self.encore.latest()

    def decide(self, turns: list[Turn]) -> Assignment | None:
        """Add a turn whose time does not matter to *turns*, and those that only go on with its batch; return its
        assignment if there is nothing to do."""
        scheduler, flying = self.scheduler, self.flying
        assignment = scheduler.schedule(nan)
        batch = assignment.batch() if assignment else None
        if batch is None and not any(flying):
            flying.clear()
            turns.append(Turn(self.changes(assignment), None, 0, 0, 0, 0, lands=False))
            return assignment
        state = len(scheduler.waiting), len(scheduler.running), scheduler.cache.pool.used
        changes, touched = self.changes(assignment), self.touched(assignment, batch) if batch else 0
        flying.append(assignment if batch else None)
        oldest = self.oldest()
        finished = self.take_in(oldest) if oldest else ()
        turns.append(Turn(changes, batch, touched, *state, oldest is not None, finished))
        if batch and (more := self.encore.turns()) > 1:
            self._decide_alike(turns, batch, min(more, FURTHEST - len(turns)))
        return None

    def _decide_alike(self, turns: list[Turn], batch: Batch, more: int) -> None:
        """Take so many *more* turns that only go on with *batch*, if there are blocks for them."""
        pool = self.scheduler.cache.pool
        waiting, running = len(self.scheduler.waiting), len(self.scheduler.running)
        for after in going_on(batch, more):
            if not self.encore.repeat():
                break
            turns.append(Turn((), after, 0, waiting, running, pool.used, lands=True))
            self.steps += 1
        self.resume()


def going_on(batch: Batch, turns: int) -> list[Batch]:
    """The batches of so many *turns* after *batch*, each of which has one more token in the cache."""
    offsets, shift = batch.contexts.offsets, batch.contexts.shift
    count = len(offsets)
    return [Batch(Contexts(offsets, shift + turn), (), count, count) for turn in range(1, turns + 1)]
