"""Evicted content is gone at once: the garbage collector is off during a run, so reference cycles would stay."""

import gc
from typing import Any

import pytest

from ksim.flow.request import Request
from ksim.foundation import process
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.sglang import SglangCache
from ksim.kv.cache.vllm import VllmCache

CACHES: dict[str, Any] = {"vllm": lambda: VllmCache(100, 16), "blocks": lambda: BlockCache(100, 16),
          "sglang": lambda: SglangCache(1600)}


def serve(cache, request):
    """Let *request* in; return what it holds."""
    table = cache.block_table(request)
    cache.attach_prefix(table, cache.find_prefix(table, request.prompt))
    assert cache.allocate(table, request.prompt)
    cache.publish(table, request.prompt)
    cache.publish_computed(table, request.prompt)
    return table


def objects(cache, requests):
    """How many objects there are when so many more *requests* have gone through *cache*."""
    for number in range(requests):
        request = Request(number, 0.0, 160, 1, ("prefix", f"private {number}"), 80)
        cache.free(serve(cache, request), request.prompt)
    return len(gc.get_objects())


@pytest.fixture(autouse=True)
def _others_are_not_counted():
    """Those that other tests have made, of which there may be a million."""
    gc.freeze()


@pytest.mark.parametrize("name", CACHES)
def test_evicted_content_leaves_no_objects_behind(name):
    cache = CACHES[name]()
    with process.paused():
        first = objects(cache, 60)
        assert objects(cache, 150) < first + 50


@pytest.mark.parametrize("name", CACHES)
def test_content_evicted_beside_a_request_in_use_leaves_no_objects_behind(name):
    cache = CACHES[name]()
    with process.paused():
        objects(cache, 20)
        table = serve(cache, Request(1000, 0.0, 160, 1, ("prefix", "private 19"), 80))
        first = objects(cache, 60)
        assert objects(cache, 150) < first + 50
    cache.free(table, 160)
