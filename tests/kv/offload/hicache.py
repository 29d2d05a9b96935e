"""Engines with SGLang's HiCache: without a clock, whose copies take turns, and in whole runs."""

from typing import Any

from ksim.flow.request import Request
from ksim.kv.offload.hicache.cache import HiCache, HostNode
from ksim.kv.offload.hicache.connector import HicacheConnector
from ksim.scheduling.connector import ConnectorOutput, Copy
from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.job import Job, Limits, Schedule
from ksim.scheduling.policies.orders import Fcfs
from ksim.testing.loop import ROOMY, Loop
from tests.kv.offload.engines import Workers, settle
from tests.kv.offload.runs import requests, scenario, turns
from tests.laws.tiny import uniform

A, B, C = ([(name, place) for place in range(8)] for name in "abc")


class Copying(Workers):
    """Only loads that wait are received; those of HiCache end with their step."""

    def work(self, schedule: Schedule, turn: int) -> ConnectorOutput:
        return ConnectorOutput(copied=super().work(schedule, turn).copied)


def engine(slots: int = 60, host: int = 1000, policy: str = "write_through", turns: Any = (1,), **limits: Any) -> Loop:
    cache, workers = HiCache(slots, host_capacity=host, write_policy=policy), Copying(turns)
    link: Any = workers
    return Loop(ConnectorScheduler(Limits(**(ROOMY | limits)), Fcfs(), cache, connector=HicacheConnector(cache)),
                connector=link)


def serve(loop: Loop, names: Any, own: int = 4, output: int = 2) -> tuple[int, int]:
    """Serve a prompt of *names*, of 4 tokens each, and *own* tokens; return what it found and what it loaded."""
    job = add(loop, names, own, output)
    settle(loop)
    return job.cached, sum(copy.tokens for copy in copies(loop) if copy.loads and copy.job is job)


def add(loop: Loop, names: Any, own: int, output: int) -> Any:
    number = len(loop.jobs)
    request = Request(number, float(number), 4 * len(names) + own, output, (*names, ("own", number)), 4)
    job = Job.of(request, number, 1, block_table=loop.cache.block_table(request))
    loop.jobs.append(job)
    loop.scheduler.add(job)
    return job


def copies(loop: Loop) -> list[Copy]:
    every: Any = loop.connector
    begun: list[Copy] = every.begun
    return begun


def check(cache: HiCache) -> None:
    """Each node is somewhere, the GPU has whole prefixes, and both memories have as much as they count."""
    nodes, stack = list[HostNode](), [*cache.tree.root.children.values()]
    while stack:
        node: Any = stack.pop()
        nodes.append(node)
        stack += node.children.values()
    assert all(node.resident or (node.backed and not node.locks) for node in nodes)
    assert all(cache.tree.root is node.parent or node.parent.resident for node in nodes if node.resident)
    assert cache.host_free == cache.host_capacity - sum(node.tokens for node in nodes if node.backed) >= 0
    assert cache.pool.evictable == sum(node.tokens for node in nodes if node.resident and not node.locks)
    held = cache.capacity - cache.pool.empty
    assert held >= sum(node.tokens for node in nodes if node.resident)


def with_hicache(model: str, options: dict[str, Any] | None = None, **serve: Any) -> dict[str, Any]:
    config = {"kv_connector": "HiCache", "kv_connector_extra_config": {"hicache_ratio": 4.0, **(options or {})}}
    workload = requests(12, 50, uniform(60, 100), uniform(2, 20), sessions=turns(2, 4, "0.2 s"))
    return scenario(model, workload=workload, **{"prefix_cache": "sglang", "kv_transfer_config": config,
                                                 "num_gpu_blocks_override": 20, **serve})
