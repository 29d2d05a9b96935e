"""What a scheduler will decide: schedules just like the latest, and schedules that no arrival can change."""

from attrs import define, field

from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.job import Job
from ksim.scheduling.queues import ArrivalQueue, WaitingQueue
from ksim.scheduling.scheduler import Scheduler

#: Where fewer jobs wait, a newcomer soon matters, and the look ahead does not pay.
QUEUE = 8


@define(eq=False)
class ScheduleForecast:
    """Foresees the schedules of `scheduler`, and changes nothing: `Scheduler.repeat` makes those that are foreseen."""

    scheduler: Scheduler
    _timeless: bool = field(init=False)
    _in_line: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        limits, guard = self.scheduler.limits, self.scheduler.guard
        self._timeless = not guard.proposes and self.scheduler.connector is None
        self._in_line = (self._timeless and not self.scheduler.encodes
                         and isinstance(self.scheduler.waiting, ArrivalQueue) and not guard.demands
                         and not limits.long_prefill_token_threshold and limits.prefill_schedule_interval == 1
                         and not self.scheduler.limits_adapters and limits.pipeline_parallel_size == 1)

    def independent_of_arrivals(self, newcomers: bool) -> bool:
        """Whether the next schedule is the same whenever it is made, and whatever jobs come before it, if any may come
        (*newcomers*)."""
        if not newcomers:
            return self._timeless
        return self._in_line and len(self.scheduler.waiting) >= QUEUE and self._closed()

    def _closed(self) -> bool:
        """Whether the next schedule has no sequence slot or no tokens left for a newcomer behind the waiting jobs.

        The jobs before it may get more tokens than are counted here, or be refused, which ends admission too.
        """
        scheduler, decodes, waiting = self.scheduler, self.scheduler.decodes, self.scheduler.waiting
        limits, running = scheduler.limits, scheduler.running
        tokens = limits.max_num_batched_tokens - decodes.decoding(scheduler.steps + 1)
        if len(waiting) > min(limits.active - len(running), tokens):
            return True
        for job in running[decodes.length:]:
            if not job.num_output_placeholders:
                tokens -= min(job.backlog, limits.max_model_len - 1 - job.num_computed_tokens)
        for job in waiting:
            if tokens <= 0:
                return True
            if not decodes.awaits(job):
                tokens -= job.num_tokens if self._finds_nothing(job) else 1
        return tokens <= 0

    def _finds_nothing(self, job: Job) -> bool:
        """Whether a waiting *job* cannot find a prefix in the cache: it shares no prompt, and never ran."""
        return not job.preemptions and self.scheduler.cache.is_private(job.block_table)

    def repeats_left(self) -> int:
        """How many more schedules will be just like the latest, if no job comes and none is aborted."""
        scheduler = self.scheduler
        latest, decodes, waiting = scheduler.latest, scheduler.decodes, scheduler.waiting
        if isinstance(scheduler, ConnectorScheduler):
            if not scheduler.steady:
                return 0
            waiting = scheduler.waiting.waiting  # those that load are not asked for
        if scheduler.changed or latest.entries or latest.preempted or len(decodes.members) < len(scheduler.running):
            return 0
        if waiting and not self._refuses_again(waiting):
            return 0
        left = decodes.first_end() - scheduler.steps - (not scheduler.limits.async_scheduling)
        if scheduler.connector is None:
            return left
        return min(left, scheduler.connector.quiet_steps(decodes, scheduler.steps))

    def _refuses_again(self, waiting: WaitingQueue) -> bool:
        """Whether the first job that waits is refused again: unless a policy puts others first, an admission changes
        its mind, or the cache has more of its prompt."""
        guard, decodes, first = self.scheduler.guard, self.scheduler.decodes, self.scheduler.next_in_line(waiting)
        return first is None or not (guard.reorders or guard.demands or decodes.awaits(first) or decodes.findable
                                     or self.scheduler.releases_soon)
