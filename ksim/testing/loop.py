"""The loop of an engine without an engine: schedule a batch and, once enough are in flight, update with the oldest."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field

from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.kv.cache.block_cache import BlockCache
from ksim.scheduling.engine_loop import EngineLoop
from ksim.scheduling.job import Job, Limits, Schedule, State
from ksim.scheduling.scheduler import Scheduler
from ksim.scheduling.sglang.jobs import SglangJobs
from ksim.scheduling.sglang.limits import SglangLimits
from ksim.testing.connected import StoreConnector

#: Limits that do not bind unless a test sets them.
ROOMY: dict[str, Any] = {"max_num_batched_tokens": 1000, "max_num_seqs": 100, "max_model_len": 1000}
#: The same for SGLang's scheduler.
ROOMY_SGLANG: dict[str, Any] = {"max_running_requests": 100, "context_length": 1000}


@define(eq=False)
class Loop(EngineLoop):
    """Requests become jobs by `add`; `turn` returns the tokens of each job, and `finished` lists completed jobs.

    `scheduler` is ksim's or anything with its methods.  Jobs are of the class `job_class`.
    """

    jobs: list[Job] = field(factory=list)
    finished: list[Job] = field(factory=list)
    last_schedule: Schedule = field(factory=Schedule)
    turns: int = 0
    job_class: type[Job] = Job
    latest: float = -1.0  # when the last request reached the engine, in seconds
    tick: float = 1.0  # seconds that a turn takes
    connector: StoreConnector | None = None

    @property
    def cache(self) -> Any:
        return self.scheduler.cache

    def add(self, prompt: int, output: int = 10, *, chunks: Sequence[Any] = (), limit: int | None = None,
            priority: int = 0, reads_cache: bool = True, ignore_eos: bool = False, arrival: float | None = None,
            arrived: float | None = None, request_id: int | None = None, tenant: str = "") -> Job:
        """Add a request to the waiting queue.

        By default, its arrival time and its id are its number.  *chunks* name its blocks.
        """
        number, block_tokens = len(self.jobs), self.cache.block_tokens
        request = Request(number if request_id is None else request_id, float(number) if arrival is None else arrival,
                          prompt, output, chunks, block_tokens, priority, tenant=tenant, ignore_eos=ignore_eos)
        block_table = getattr(self.scheduler, "block_table", self.cache.block_table)
        job = self.job_class.of(request, number, block_tokens, limit=limit, arrived=arrived,
                                block_table=block_table(request))
        job.reads_cache = reads_cache
        self.jobs.append(job)
        self.scheduler.add(job)
        return job

    def schedule(self) -> dict[Job, int]:
        """Schedule a batch; return the tokens of each job, in the order of the batch."""
        self.last_schedule = self.begin_turn(self.turns * self.tick).schedule
        if self.connector is not None:
            self.in_flight[-1].output = self.connector.work(self.last_schedule, self.turns)
        return {entry.job: entry.tokens for entry in self.last_schedule.all_entries()}

    def update(self) -> list[Job]:
        """Process the oldest batch if enough are in flight; return the finished jobs."""
        done = list[Job]()
        if self.full:
            self.in_flight[0].index = self.turns  # a job's tokens are counted by the turns that process them
            done = self.take_in_oldest()
        self.turns += 1
        self.finished += done
        return done

    def turn(self) -> dict[Job, int]:
        batch = self.schedule()
        self.update()
        return batch

    def turns_of(self, job: Job, turns: int) -> list[int]:
        """The number of tokens that *job* gets in each of the next *turns* turns."""
        return [self.turn().get(job, 0) for _ in range(turns)]

    def run(self, turns: int = 10_000) -> None:
        """Take turns until all jobs are done."""
        while any(job.state is not State.DONE for job in self.jobs):
            assert self.turns < turns, f"jobs are still there after {turns} turns"
            self.turn()


def is_sglang(scheduler: Any) -> bool:
    """Whether *scheduler*, a class, has the settings and the rules of SGLang's."""
    return isinstance(scheduler, type) and issubclass(scheduler, SglangJobs)


def loop(*, policy: Any = None, admission: Any = None, blocks: int = 1000, block_tokens: int = 4,
         prefix_caching: bool = True, scheduler: Any = Scheduler, cache: Any = BlockCache,
         connector: Mapping[str, bool] | None = None, **limits: Any) -> Loop:
    """A loop whose limits do not bind, except those given; *scheduler* and *cache* are classes such as ksim's.

    *connector* says what a `StoreConnector` does, for a scheduler that has one.
    """
    store = cache(blocks, block_tokens, prefix_caching)
    bounds: Any = SglangLimits(**(ROOMY_SGLANG | limits)) if is_sglang(scheduler) else Limits(**(ROOMY | limits))
    parts = (bounds, policy or catalog.find("scheduling.policies", "fcfs")(), store,
             admission or catalog.find("scheduling.admissions", "always")())
    if connector is None:
        return Loop(scheduler(*parts))
    roles: dict[str, Any] = {"block_tokens": store.block_tokens, **connector}
    link = StoreConnector(**roles)
    return Loop(scheduler(*parts, connector=link), connector=link)
