"""ksim's own scheduler with a KV connector keeps what must hold for one, whichever cache and policy it has."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.sglang import SglangCache
from ksim.kv.cache.vllm import VllmCache
from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.engine_loop import ScheduleForecast
from ksim.testing import check_transfers
from ksim.testing.check_transfers import transfer_cases
from ksim.testing.history import digest
from ksim.testing.strategies import cases
from ksim.testing.trial import Subject
from tests.properties import examples, share

#: What can be said of caches that do not list the blocks of a request.
COUNTED = ("token_budget", "sequence_limit", "nobody_lost", "loads_are_awaited", "preempted_gain_nothing",
           "all_ends_once", "no_error")


@pytest.mark.parametrize("policy", ["fcfs", "priority", "shortest_prompt_first", "prefill_first", "fair_share"])
def test_no_block_is_free_while_it_is_loaded_or_read(policy):
    check_transfers(policy=policy, max_examples=share(100))


def test_sglangs_cache_keeps_what_is_loaded():
    check_transfers(cache=lambda blocks, block_tokens, caching: SglangCache(blocks * block_tokens, caching),
                    invariants=COUNTED, max_examples=share(100))


@examples(100)
@given(case=transfer_cases())
def test_runs_of_blocks_are_loaded_as_each_block_is(case):
    one, other = (Subject("fcfs", ConnectorScheduler, cache).play(case) for cache in (BlockCache, VllmCache))
    assert digest(one) == digest(other)


class Repeating(ConnectorScheduler):
    """Repeats the latest schedule where that is known to be the next."""

    def schedule(self, now):
        if ScheduleForecast(self).repeats_left() > 0 and self.repeat():
            return self.repeated()
        return super().schedule(now)


@examples(150)
@given(case=transfer_cases(), cache=st.sampled_from([BlockCache, VllmCache]),
       policy=st.sampled_from(["fcfs", "priority"]))
def test_repeating_what_is_known_equals_making_it_anew(case, cache, policy):
    one, other = (Subject(policy, scheduler, cache).play(case) for scheduler in (ConnectorScheduler, Repeating))
    assert digest(one) == digest(other)


@examples(60)
@given(case=cases())
def test_a_connector_that_offers_nothing_changes_nothing(case):
    """Not with one batch in flight, and not with more as long as nobody is preempted or ends unforeseen."""
    if case.limits.depth > 1:
        calm = tuple(attrs.evolve(arrival, overrun=0) for arrival in case.arrivals)
        case = attrs.evolve(case, settings=case.settings | {"blocks": 5000}, arrivals=calm, aborts=())
    plain = Subject("fcfs").play(case)
    for consumes, produces in ((True, False), (False, True), (True, True)):
        roles = {"consumes": consumes, "produces": produces}
        idle = attrs.evolve(case, settings=case.settings | {"connector": roles})
        history = Subject("fcfs", ConnectorScheduler).play(idle)
        assert digest(history)[: len(digest(plain))] == digest(plain)
