"""Policies written for ksim 0.1 may ask a cache and a job by their old names, with a warning."""

import pytest

from ksim.flow.request import Request
from ksim.kv_cache.block_cache import BlockCache
from ksim.kv_cache.sglang import SglangCache
from ksim.kv_cache.vllm import VllmCache
from ksim.scheduling.job import Job

CACHES = [VllmCache(10, 4), BlockCache(10, 4), SglangCache(40)]
REQUEST = Request(0, 0.0, 9, 1, "abc", 4)


@pytest.mark.parametrize("cache", CACHES)
def test_a_cache_answers_to_its_old_names(cache):
    with pytest.warns(FutureWarning, match="holding is block_table now"):
        table = cache.holding(REQUEST)
    with pytest.warns(FutureWarning, match="lookup is find_prefix now"):
        hit = cache.lookup(table, 9)
    with pytest.warns(FutureWarning, match="fits is can_allocate now"):
        assert cache.fits(hit, 40)
    with pytest.warns(FutureWarning, match="enters_computed is publishes_computed now"):
        assert cache.enters_computed == isinstance(cache, SglangCache)


def test_a_job_answers_to_the_old_name_of_its_block_table():
    job = Job.of(REQUEST, 0, 4)
    with pytest.warns(FutureWarning, match=r"Job\.holding is block_table now"):
        assert job.holding is job.block_table
