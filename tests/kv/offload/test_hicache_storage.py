"""Storage behind HiCache's host memory: by hand, in whole runs, and as a law."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.events import Copied
from ksim.flow.request import BlockKeys
from ksim.foundation.errors import ConfigError
from ksim.kv.offload.connectors.hicache import BACKENDS
from ksim.kv.offload.hicache.cache import WRITE_POLICIES, HiCache
from ksim.kv.offload.hicache.connector import (
    POLICIES,
    HicacheConnector,
    Prefetches,
    PrefetchRules,
    StorageJob,
    TierStorage,
)
from ksim.kv.offload.store import SecondaryTier
from ksim.scenario.scenario import Scenario
from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.job import Limits, State
from ksim.scheduling.policies.orders import Fcfs
from ksim.simulation.fleet import Fleet
from ksim.testing.loop import ROOMY, Loop
from tests.kv.offload.hicache import A, Copying, add, check, copies, with_hicache
from tests.kv.offload.runs import BLOCK, requests, turns
from tests.kv.transfer.fleets import run
from tests.laws.tiny import uniform
from tests.properties import examples

PAGE = 4


class Threads:
    """An engine without a clock, before whose turns storage moves `pages` pages of its oldest read and write."""

    def __init__(self, pages: int = 1, tier: SecondaryTier | None = None, host: int = 1000, seqs: int = 100,
                 **rules: Any) -> None:
        self.cache, workers = HiCache(60, host_capacity=host), Copying((1,))
        self.tier = tier or SecondaryTier("disk", "disk0")
        self.prefetches = Prefetches(self.cache, TierStorage(self.tier), KEYS,
                                     PrefetchRules(**{"threshold": 8, **rules}))
        link: Any = workers
        connector = HicacheConnector(self.cache, prefetches=self.prefetches)
        limits = Limits(**(ROOMY | {"max_num_seqs": seqs}))
        self.loop = Loop(ConnectorScheduler(limits, Fcfs(), self.cache, connector=connector), connector=link)
        self.pages = pages
        self.jobs: list[StorageJob] = []
        self.places: dict[StorageJob, int] = {}

    def turn(self) -> dict[Any, int]:
        for job in [next((job for job in self.jobs if job.reads is way), None) for way in (True, False)]:
            if job is not None:
                self._move(job)
        self.prefetches.begin_turn(float(self.loop.turns))
        self.jobs += self.prefetches.begun
        self.prefetches.begun.clear()
        return self.loop.turn()

    def _move(self, job: StorageJob) -> None:
        place = self.places.get(job, 0)
        keys = job.keys[place: place + self.pages]
        if not job.stopped and keys:
            self.places[job] = place + len(keys)
            self.prefetches.moved(job, len(keys))
            if not job.reads:
                self.tier.add(keys)
        if job.stopped or self.places[job] == len(job.keys):
            self.jobs.remove(job)
            self.prefetches.ended(job)

    def settle(self) -> None:
        while self.loop.scheduler.has_requests or self.jobs or self.prefetches.begun:
            self.turn()
            assert self.loop.turns < 10_000


KEYS = BlockKeys(PAGE)


def stored() -> SecondaryTier:
    """Storage that has a prompt of A and one more page."""
    first = Threads(pages=100)
    add(first.loop, A, 4, 2)
    first.settle()
    assert len(first.tier) >= 8
    return first.tier


@pytest.mark.parametrize(("policy", "rules", "waits", "loads"), [
    ("best_effort", {}, 0, 0), ("wait_complete", {}, 10, 35), ("timeout", {"base": 4.0, "per_ki_token": 0.0}, 4, 12)])
def test_a_request_waits_for_storage_as_the_policy_says(policy, rules, waits, loads):
    threads = Threads(tier=stored(), policy=policy, **rules)
    job = add(threads.loop, A, 4, 2)
    turn = 0
    while job.state is State.WAITING:
        threads.turn()
        turn += 1
    assert turn - 1 == waits
    assert sum(copy.tokens for copy in copies(threads.loop) if copy.loads) == loads
    threads.settle()
    check(threads.cache)


def test_best_effort_takes_what_has_come_while_the_engine_was_full():
    threads = Threads(tier=stored(), seqs=1, policy="best_effort")
    add(threads.loop, [("b", place) for place in range(8)], 4, 6)
    threads.turn()
    job = add(threads.loop, A, 4, 2)
    threads.settle()
    loaded = sum(copy.tokens for copy in copies(threads.loop) if copy.loads and copy.job is job)
    assert 0 < loaded < 32


def test_less_than_the_threshold_is_not_fetched():
    threads = Threads(tier=stored(), policy="wait_complete", threshold=40)
    job = add(threads.loop, A, 8, 2)
    threads.turn()
    threads.turn()
    assert job.state is State.RUNNING and not threads.jobs


def test_an_aborted_request_gives_back_its_room():
    threads = Threads(tier=stored(), policy="wait_complete")
    job = add(threads.loop, A, 4, 2)
    for _ in range(4):
        threads.turn()
    assert threads.cache.host_free < threads.cache.host_capacity
    threads.loop.scheduler.abort(job)
    threads.settle()
    assert threads.cache.host_free == threads.cache.host_capacity


@given(wanted=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 8), st.integers(1, 9), st.integers(1, 6),
                                 st.integers(0, 4), st.booleans()), min_size=1, max_size=10),
       policy=st.sampled_from(POLICIES), host=st.integers(0, 150), pages=st.integers(1, 4),
       capacity=st.sampled_from([None, 5]), base=st.integers(0, 5))
@examples(80)
def test_host_memory_is_counted_right_whatever_comes_and_goes(wanted, policy, host, pages, capacity, base):
    threads = Threads(pages, SecondaryTier("disk", "disk0", capacity), host, policy=policy, base=base, threshold=0)
    for name, blocks, own, output, pause, aborted in wanted:
        job = add(threads.loop, [(name, place) for place in range(blocks)], own, output)
        for _ in range(pause):
            threads.turn()
        if aborted:
            threads.loop.scheduler.abort(job)
    threads.settle()
    check(threads.cache)
    assert threads.cache.pool.used == 0 and all(job.state is State.DONE for job in threads.loop.jobs)


# Whole runs.


def with_storage(model: str, backend: str = "file", policy: str = "wait_complete", **options: Any) -> dict[str, Any]:
    rules = {"prefetch_threshold": 8, **options.pop("rules", {})}
    table = with_hicache(model, {"hicache_storage_backend": backend, "hicache_storage_prefetch_policy": policy,
                                 "hicache_storage_backend_extra_config": rules, "page_size": 4, "hicache_ratio": 1.0,
                                 **options})
    workload = requests(14, 200, uniform(60, 100), uniform(2, 20), sessions=turns(2, 4, "0.1 s"),
                        prefixes={"groups": 2, "tokens": 40})
    return {**table, "workload": workload}


@pytest.mark.parametrize(("backend", "policy"), [("file", "best_effort"), ("file", "timeout"),
                                                 ("mooncake", "wait_complete")])
def test_an_engine_that_skips_gives_what_one_that_steps_gives(model, backend, policy):
    table = with_storage(model, backend, policy, rules={"prefetch_timeout_base": 1e-4, "prefetch_timeout_max": 1e-3})
    one, other = run(table), run(table, skips=False)
    # A turn arrives when the one before has ended, to which the two come by different sums.
    rounded = ["arrival_s", "received_s"]
    assert one.requests.drop(rounded).equals(other.requests.drop(rounded))
    column = "disk_tokens" if backend == "file" else "storage_tokens"
    assert sum(one.requests.column(column).to_pylist()) > 0


@pytest.mark.parametrize("policy", [*WRITE_POLICIES])
def test_bytes_are_those_of_the_pages_and_nothing_is_read_that_was_not_written(model, policy):
    result = run(with_storage(model, hicache_write_policy=policy))
    moved = [copy for copy in result.log.of(Copied) if "disk" in (copy.source, copy.target)]
    assert moved and all(copy.bytes == copy.tokens * BLOCK / 16 for copy in moved)
    first = min(moved, key=lambda copy: copy.time)
    assert first.target == "disk"
    read = sum(copy.tokens for copy in moved if copy.source == "disk")
    assert 0 < sum(result.requests.column("disk_tokens").to_pylist()) <= read
    assert result.summary["disk_read_bytes"] == read * BLOCK / 16


@pytest.mark.parametrize(("options", "words"), [
    ({"hicache_storage_backend": "tape"}, "hicache_storage_backend"),
    ({"page_size": 64}, "page_size is about storage, and hicache_storage_backend names none"),
    ({"hicache_storage_backend": "file", "hicache_storage_prefetch_policy": "later"}, "wait_complete"),
    ({"hicache_storage_backend": "file", "hicache_storage_backend_extra_config": {"prefetch_treshold": 1}},
     "has 'prefetch_treshold'; SGLang knows prefetch_threshold"),
    ({"hicache_storage_backend": "mooncake", "hicache_storage_backend_extra_config": {
        "global_segment_size": "9000 GiB"}}, "of host memory for KV"),
    ({"hicache_storage_backend": "file", "hicache_storage_backend_extra_config": {"prefetch_timeout_base": -1}},
     "'base' must be >= 0")])
def test_what_cannot_be_is_refused(model, options, words):
    with pytest.raises(ConfigError) as refused:
        Fleet.of(Scenario.of(with_hicache(model, options)))
    assert words in str(refused.value)


def test_storage_must_be_there(model):
    with pytest.raises(ConfigError, match="hicache_storage_backend has a tier on storage, and HGX H200 has no storage"):
        run(with_storage(model, "nixl"))
    assert {*BACKENDS.values()} == {"disk", "storage", "pool"}
