"""Schedules with LoRA adapters: a batch has at most `max_loras` of them."""

from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import define, evolve, field

from ksim.flow.batch import Batch
from ksim.flow.request import AdapterLoad
from ksim.kv.cache import PrefixHit
from ksim.scheduling.adapter_store import AdapterStore
from ksim.scheduling.draft_scheduler import DraftSchedule
from ksim.scheduling.job import Job, Schedule, State
from ksim.scheduling.queues import WaitingQueue
from ksim.scheduling.scheduler import Rules, Scheduler

__all__ = ["AdapterSchedule", "AdapterScheduler", "adapting"]


@define(eq=False)
class AdapterSchedule(DraftSchedule):
    """A schedule that knows whose tokens are for which adapter, and which adapters are `loaded` with it."""

    loaded: Sequence[AdapterLoad] = ()

    def batch(self) -> Batch:
        batch = super().batch()
        tokens = Counter(job.request.adapter for job in self.decodes)
        for entry in self.entries:
            tokens[entry.job.request.adapter] += entry.tokens
        del tokens[""]
        return evolve(batch, adapters=tuple(sorted(tokens.values(), reverse=True)), loads=self.loaded)

    def jobs(self) -> Iterator[Job]:
        """Those of the batch, in its order."""
        yield from self.decodes
        for entry in self.entries:
            yield entry.job


@define(eq=False, slots=False)
class AdapterScheduler(Scheduler):
    """Passes over waiting jobs whose adapter would be one too many, as vLLM 0.33 does.

    Adapters of all running jobs count, whether or not they are in the batch.  A preempted job waits like any other.
    """

    adapters: AdapterStore = field(kw_only=True)  # type: ignore[misc]
    _present: set[str] | None = field(default=None, init=False)  # adapters of running jobs, once a schedule asked

    @property
    def limits_adapters(self) -> bool:
        return self.adapters.scarce

    def next_in_line(self, waiting: WaitingQueue) -> Job | None:
        self._present = None
        return next((job for job in waiting if not self._exceeds(job)), None)

    def repeated(self) -> Schedule:
        super().repeated()
        self.latest = self._with_adapters(self.latest)
        return self.latest

    @staticmethod
    def _with_adapters(schedule: Schedule) -> AdapterSchedule:
        return AdapterSchedule(schedule.number, schedule.epoch, schedule.decodes, schedule.offsets,
                               width=getattr(schedule, "width", 1))

    def _begin(self) -> None:
        super()._begin()
        self.latest, self._present = self._with_adapters(self.latest), None

    def _exceeds(self, job: Job) -> bool:
        """Whether the adapter of *job* would be one too many beside those of the running jobs."""
        if not job.request.adapter or not self.adapters.scarce:
            return False
        if self._present is None:
            self._present = {other.request.adapter for other in self.running} - {""}
        return len(self._present) >= self.adapters.slots and job.request.adapter not in self._present

    def _admit(self, job: Job, wish: int) -> bool:
        if self.latest.preempted or len(self.running) >= self.limits.active or not self._exceeds(job):
            return super()._admit(job, wish)
        if job.state is State.LOADING:
            self._promote(job)
        job.passed_over = True
        return True

    def _start(self, job: Job, hit: PrefixHit, computed: int, wish: int) -> bool:
        started = super()._start(job, hit, computed, wish)
        if started and self._present is not None and job.request.adapter:
            self._present.add(job.request.adapter)
        return started

    def _conclude(self) -> Schedule:
        schedule = super()._conclude()
        assert isinstance(schedule, AdapterSchedule), "every schedule is begun as one with adapters"
        names = dict.fromkeys(job.request.adapter for job in schedule.jobs())
        names.pop("", None)
        schedule.loaded = self.adapters.activate(names)
        return schedule


def adapting(store: AdapterStore) -> Sequence[Rules]:
    """The rules of an engine whose LoRA adapters are in *store*."""
    return (Rules(3, AdapterScheduler, {"adapters": store}),)
