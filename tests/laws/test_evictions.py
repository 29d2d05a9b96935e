"""Whatever an eviction says: only what nobody uses is lost, nobody loses a token, and with room it is not asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation import catalog
from ksim.kv.cache import BlockTable, PrefixHit
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.sglang import SglangCache
from ksim.scheduling.job import Limits, State
from ksim.scheduling.policies.orders import Fcfs
from ksim.scheduling.scheduler import Scheduler
from ksim.testing.loop import ROOMY, Loop
from tests.properties import examples
from tests.scheduling.workloads import Workload, workloads

NAMES = catalog.names("kv.cache.evictions")

each_eviction = pytest.mark.parametrize("name", NAMES)
each_cache = pytest.mark.parametrize("kind", ["vllm", "sglang"])


def cache_of(kind: str, blocks: int, block_tokens: int, prefix_caching: bool, name: str) -> BlockCache | SglangCache:
    eviction = catalog.find("kv.cache.evictions", name)
    if kind == "sglang":
        return SglangCache(blocks * block_tokens, prefix_caching, eviction)
    return BlockCache(blocks, block_tokens, prefix_caching, eviction)


def play(workload: Workload, cache: BlockCache | SglangCache) -> Loop:
    limits = {key: value for key, value in workload.settings.items()
              if key not in ("blocks", "block_tokens", "prefix_caching")}
    engine = Loop(Scheduler(Limits(**(ROOMY | limits)), Fcfs(), cache))
    for arrival in workload.arrivals:
        engine.add(arrival.prompt, arrival.output, chunks=arrival.chunks(cache.block_tokens))
    engine.run()
    return engine


@each_eviction
@each_cache
@given(workload=workloads(aborts=False))
@examples(25)
def test_every_request_gets_exactly_its_tokens_and_gives_all_back(name, kind, workload):
    blocks, block_tokens, caching = (workload.settings[key] for key in ("blocks", "block_tokens", "prefix_caching"))
    engine = play(workload, cache_of(kind, blocks, block_tokens, caching, name))
    for job, arrival in zip(engine.jobs, workload.arrivals, strict=True):
        tokens = min(arrival.output, engine.scheduler.limits.max_model_len - arrival.prompt)
        assert (job.state, job.sampled) == (State.DONE, tokens)
    assert (engine.cache.pool.used, engine.cache.pool.free) == (0, engine.cache.capacity)


@each_eviction
@each_cache
@given(workload=workloads(aborts=False))
@examples(15)
def test_evictions_are_all_alike_in_a_cache_with_room_for_everything(name, kind, workload):
    tokens = workload.settings["block_tokens"]
    roomy, usual = (play(workload, cache_of(kind, 2000, tokens, True, choice)) for choice in (name, "lru"))
    assert [job.cached for job in roomy.jobs] == [job.cached for job in usual.jobs]


@each_eviction
@each_cache
@given(prompts=st.lists(st.text("ab", min_size=1, max_size=8), max_size=12), kept=st.text("ab", min_size=1, max_size=8))
@examples(40)
def test_eviction_takes_no_block_in_use(name, kind, prompts, kept):
    cache = cache_of(kind, 20, 1, True, name)
    table = _start(cache, kept)
    for prompt in prompts:
        cache.free(_start(cache, prompt), len(prompt))
    assert cache.find_prefix(BlockTable(kept), len(kept) + 1).tokens == len(kept)
    assert cache.pool.used == len(kept)
    cache.free(table, len(kept))
    assert cache.pool.used == 0


@each_eviction
@each_cache
@given(prompts=st.lists(st.text("ab", min_size=1, max_size=8), max_size=12))
@examples(40)
def test_all_unused_blocks_can_be_allocated(name, kind, prompts):
    cache = cache_of(kind, 20, 1, True, name)
    for prompt in prompts:
        cache.free(_start(cache, prompt), len(prompt))
    rest = BlockTable()
    cache.attach_prefix(rest, PrefixHit(0))
    assert cache.allocate(rest, 20)
    assert not any(cache.find_prefix(BlockTable(prompt), len(prompt) + 1).tokens for prompt in prompts)


def _start(cache: BlockCache | SglangCache, prompt: str) -> BlockTable:
    """Hold *prompt*, from what is cached of it, and have the rest computed."""
    table = BlockTable(prompt)
    cache.attach_prefix(table, cache.find_prefix(table, len(prompt) + 1))
    assert cache.allocate(table, len(prompt))
    cache.publish(table, len(prompt))
    cache.publish_computed(table, len(prompt))
    return table
