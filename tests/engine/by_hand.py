"""Engines of which every time is set by hand, and a cluster that plays requests on them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import simpy
from attrs import evolve, frozen

from ksim.cluster.cluster import Cluster
from ksim.cluster.routers.by_load import RoundRobin
from ksim.engine.engine import Engine
from ksim.engine.event_engine import EventEngine
from ksim.engine.ranks import DataParallelGroup, WholeSteps
from ksim.flow.batch import Batch
from ksim.flow.events import Emitted, Stepped
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.kv.cache.block_cache import BlockCache
from ksim.scheduling.job import Limits
from ksim.scheduling.policies.orders import Fcfs
from ksim.scheduling.scheduler import Scheduler
from ksim.specs.host import Host
from tests.specs.hosts import host

FREE = host()
#: 2 s before each step, 3 s after it.
SLOW = host(core={"schedule": 1, "update": 3}, worker={"prepare": 1})

Seconds = float | Callable[[Batch], float]


def timeline(*seconds: float) -> StepCost:
    """So many kernels one after another."""
    return StepCost.of([PricedBlock.of(tuple(KernelCost.of("work", "gemm", each) for each in seconds))])


@frozen
class Timer:
    """Stands for a step timer; `seconds` is what a step takes, or says it of the batch."""

    seconds: Seconds
    launch: float = 0.0

    @property
    def prices(self) -> object:
        return self

    def step_cost(self, batch: Batch, brought: Sequence[int] = ()) -> StepCost:
        seconds = self.seconds(batch) if callable(self.seconds) else self.seconds
        return evolve(timeline(seconds), launch_seconds=self.launch)


def engine(env: simpy.Environment, log: Log, number: int = 0, *, steps: tuple[Seconds, ...] = (10.0,),
           host: Host = FREE, launch: float = 0.0, group: DataParallelGroup | None = None, blocks: int = 1000,
           policy: Any = None, **settings: Any) -> Engine:
    """An engine with a pipeline stage for each of *steps*, whose launches take *launch* seconds of a CPU.

    *settings* are those of its scheduler.
    """
    limits = {"max_num_batched_tokens": 100, "max_num_seqs": 10, "max_model_len": 1000, **settings}
    scheduler = Scheduler(Limits(pipeline_parallel_size=len(steps), **limits), policy or Fcfs(), BlockCache(blocks, 16))
    timers = [Timer(seconds, launch) for seconds in steps]
    return EventEngine(number=number, env=env, scheduler=scheduler, timers=timers, stages=WholeSteps(env, len(steps)),
                       host=host, log=log, workers=len(steps), group=group)


def play(requests: Iterable[Request], *, engines: int = 1, router: Any = None, max_concurrency: int | None = None,
         on_end: Callable[[], None] = lambda: None, **settings: Any) -> Cluster:
    """Serve *requests* to the end; the cluster has the log, and the engines as they were left."""
    env, log = simpy.Environment(), Log()
    served = [engine(env, log, number, **settings) for number in range(engines)]
    cluster = Cluster(env, router or RoundRobin(), served, log, max_concurrency, on_end)
    env.process(cluster.serve(requests))
    env.run()
    return cluster


def token_times(log: Log, request: int) -> list[float]:
    """When each token of *request* left."""
    times = {(step.engine, step.index): step.time for step in log.of(Stepped)}
    return [times[run.engine, index] for run in log.of(Emitted) if run.request_id == request
            for index in range(run.first, run.last + 1, run.every)]
