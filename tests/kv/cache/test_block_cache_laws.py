"""Whatever is done to it, the cache block by block does as lists and a dictionary would, and loses no block."""

from functools import partial

from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.evictions.by_history import vllm
from ksim.testing.cache import CacheMachine
from tests.properties import examples


class WithAnEviction(CacheMachine):
    """vLLM's order as an eviction like any other, instead of the cache's own."""

    def __init__(self):
        super().__init__(partial(BlockCache, eviction=vllm))


TestOwnOrder = CacheMachine.TestCase
TestOwnOrder.settings = examples(100, stateful_step_count=40)
TestEviction = WithAnEviction.TestCase
TestEviction.settings = examples(100, stateful_step_count=40)
