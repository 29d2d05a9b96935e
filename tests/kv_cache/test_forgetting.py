"""What a cache loses is gone at once: while a run goes on, no collector looks for what only refers to each other."""

import gc

import pytest

from ksim.flow.request import Request
from ksim.foundation import garbage
from ksim.kv_cache.kv_cache import KVCache
from ksim.kv_cache.sglang import SglangCache
from ksim.kv_cache.vllm import VllmCache

CACHES = {"vllm": lambda: VllmCache(100, 16), "blocks": lambda: KVCache(100, 16), "sglang": lambda: SglangCache(1600)}


def serve(cache, request):
    """Let *request* in; return what it holds."""
    holding = cache.holding(request)
    cache.open(holding, cache.lookup(holding, request.prompt))
    assert cache.grow(holding, request.prompt)
    cache.enter(holding, request.prompt)
    cache.computed(holding, request.prompt)
    return holding


def objects(cache, requests):
    """How many objects there are when so many more *requests* have gone through *cache*."""
    for number in range(requests):
        request = Request(number, 0.0, 160, 1, ("prefix", f"private {number}"), 80)
        cache.close(serve(cache, request), request.prompt)
    return len(gc.get_objects())


@pytest.mark.parametrize("name", CACHES)
def test_what_is_lost_leaves_nothing_behind(name):
    cache = CACHES[name]()
    with garbage.paused():
        first = objects(cache, 100)
        assert objects(cache, 400) < first + 100


@pytest.mark.parametrize("name", CACHES)
def test_nor_where_one_that_stays_was_next_to_it(name):
    cache = CACHES[name]()
    with garbage.paused():
        objects(cache, 20)
        holding = serve(cache, Request(1000, 0.0, 160, 1, ("prefix", "private 19"), 80))
        first = objects(cache, 100)
        assert objects(cache, 400) < first + 100
    cache.close(holding, 160)
