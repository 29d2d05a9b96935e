"""Schedules that are known before they are made, since they are just like the latest."""

from attrs import frozen

from ksim.scheduling.assignment import Assignment
from ksim.scheduling.scheduler import Scheduler


@frozen(eq=False)
class Encore:
    """What `scheduler` will decide as long as its batch only goes on decoding."""

    scheduler: Scheduler

    def turns(self) -> int:
        """How many more schedules will be just like the latest, if no job comes and none is aborted."""
        scheduler = self.scheduler
        latest, steady, waiting = scheduler.latest, scheduler.steady, scheduler.waiting
        if scheduler.stirred or latest.grants or latest.preempted or len(steady.members) < len(scheduler.running):
            return 0
        # Who was refused is refused again, unless a policy puts others first, an admission changes its mind, or the
        # cache has more of its prompt.
        if waiting and (scheduler.counsel.reorders or scheduler.counsel.demands or next(iter(waiting)).due
                        or steady.findable):
            return 0
        return steady.first_end() - scheduler.steps - (not scheduler.limits.async_scheduling)

    def repeat(self) -> bool:
        """Make the next of them; return False, with nothing done, where blocks are short."""
        scheduler = self.scheduler
        if not scheduler.steady.renew(scheduler.steps + 1):
            return False
        scheduler.steps += 1
        return True

    def latest(self) -> Assignment:
        """The one made last."""
        scheduler, steady = self.scheduler, self.scheduler.steady
        scheduler.latest = Assignment(scheduler.steps, steady.epoch, steady.members, steady.offsets)
        return scheduler.latest

    def come_back(self, index: int) -> None:
        """Take in that all but those still in flight were computed, up to the engine's step number *index*."""
        scheduler = self.scheduler
        scheduler.steady.returned, scheduler.steady.index = scheduler.steps - scheduler.limits.async_scheduling, index
