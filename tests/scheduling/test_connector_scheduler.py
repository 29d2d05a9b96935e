"""A scheduler with a KV connector, turn by turn; tests/golden/transfers has whole recordings of vLLM's."""

from typing import Any

import pytest

from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.sglang import SglangCache
from ksim.kv.cache.vllm import VllmCache
from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.engine_loop import ScheduleForecast
from ksim.scheduling.job import Job, State
from ksim.testing.connected import PlannedTransfer
from ksim.testing.loop import Loop, loop

CACHES = {"blocks": BlockCache, "vllm": VllmCache,
          "sglang": lambda blocks, block_tokens, caching: SglangCache(blocks * block_tokens, caching)}
each_cache = pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
CONSUMER, PRODUCER = {"consumes": True, "produces": False}, {"consumes": False, "produces": True}


def engine(roles: dict[str, bool] = CONSUMER, **settings: Any) -> Loop:
    return loop(scheduler=ConnectorScheduler, connector=roles, **settings)


def add(engine: Loop, prompt: int, output: int = 4, *, name: str = "", **transfer: Any) -> Job:
    """Add a request whose blocks are named after *name*, with a transfer."""
    block_tokens = engine.cache.block_tokens
    job = engine.add(prompt, output, chunks=[(name, place) for place in range(prompt // block_tokens)] if name else ())
    if transfer:
        engine.connector.transfers[job] = PlannedTransfer(**transfer)
    return job


def used(engine: Loop) -> int:
    """The tokens that fit into the blocks in use."""
    return engine.cache.pool.used * engine.cache.block_tokens


@each_cache
def test_a_load_holds_blocks_and_the_last_token_is_computed_again(cache):
    some = engine(cache=cache)
    job = add(some, 8, stored=8, turns=2)
    assert (some.turn(), job.state, used(some)) == ({}, State.LOADING, 8)
    assert (some.turn(), some.turn()) == ({}, {})  # reported with the output of the third
    assert (len(some.scheduler.waiting), some.scheduler.transfers_pending) == (1, False)
    assert some.turn() == {job: 1}
    assert (some.last_schedule.entries[0].start, job.num_tokens) == (7, 9)
    some.run()
    assert used(some) == 0


@each_cache
def test_what_is_loaded_is_found_by_others_once_the_load_has_ended(cache):
    some = engine(cache=cache)
    first = add(some, 8, name="a", stored=8, turns=1)
    some.turn()
    early = add(some, 8, name="a")
    assert some.turn() == {early: 8}
    late = add(some, 8, name="a")
    assert some.turn()[first] == 1
    assert (late.cached > 0, first.cached) == (True, 0)


def test_only_what_the_cache_lacks_is_loaded():
    some = engine()
    add(some, 9, output=1, name="a")
    some.turn()
    job = add(some, 13, name="a", stored=13, turns=0)
    some.turn()
    assert [(load.start, load.tokens) for load in some.last_schedule.loads] == [(8, 5)]
    assert some.turn() == {job: 1}


def test_a_prompt_of_which_a_part_is_stored_is_computed_from_there():
    some = engine()
    job = add(some, 10, stored=4, turns=0)
    assert [some.turn(), some.turn()] == [{}, {job: 6}]


def test_a_load_within_the_step_is_an_admission():
    some = engine()
    job = add(some, 10, stored=10, asynchronous=False)
    assert some.turn() == {job: 1}
    assert [(load.tokens, load.asynchronous) for load in some.last_schedule.loads] == [(9, False)]


def test_who_is_not_known_yet_is_passed_over():
    some = engine()
    unknown, other = add(some, 8, stored=8, unknown=1), add(some, 5)
    assert (some.turn(), unknown.state) == ({other: 5}, State.WAITING)
    some.turn()
    assert unknown.state is State.LOADING


def test_a_load_leaves_room_for_those_that_load_in_part():
    some = engine(blocks=8)
    half, whole = add(some, 20, stored=4, turns=9), add(some, 16, stored=16)
    some.turn()
    assert (half.state, whole.state, used(some)) == (State.LOADING, State.WAITING, 4)


def test_a_finished_prefill_holds_its_blocks_until_they_are_sent():
    some = engine(PRODUCER)
    job = add(some, 8, output=1, sent=1)
    some.turn()
    assert (job.state, used(some), some.scheduler.has_requests, some.scheduler.transfers_pending) == (
        State.DONE, 8, True, True)
    some.turn()
    assert some.last_schedule.sends == [job]
    some.turn()
    assert (used(some), some.scheduler.transfers_pending) == (0, False)
    assert not some.scheduler.has_requests


def test_an_aborted_load_keeps_its_blocks_until_it_has_ended():
    some = engine()
    job = add(some, 8, stored=8, turns=1)
    some.turn()
    some.scheduler.abort(job)
    assert (job.state, used(some), len(some.scheduler.waiting)) == (State.DONE, 8, 0)
    some.turn()
    assert used(some) == 0


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_load_that_fails_is_computed_here_or_fails(recomputes):
    some = engine(CONSUMER | {"recomputes": recomputes})
    job = add(some, 12, stored=12, turns=0, bad=1)
    some.turn()
    assert (job.failed, some.finished) == (not recomputes, [] if recomputes else [job])
    assert some.turn() == ({job: 8} if recomputes else {})
    if not recomputes:
        assert used(some) == 0


def test_bad_blocks_that_were_shared_leave_the_cache():
    some = engine(CONSUMER | {"recomputes": False})
    first = add(some, 13, name="a", stored=12, asynchronous=False, bad=1)
    second = add(some, 13, name="a")
    some.turn()
    assert (first.failed, second.failed) == (True, True)
    third = add(some, 13, name="a")
    assert some.turn() == {third: 9}


def test_a_victim_in_flight_is_not_preempted_where_kv_is_loaded():
    some = engine(blocks=4, async_scheduling=True, scheduler_reserve_full_isl=False)
    for _ in range(2):
        add(some, 8, output=8)
    some.turn()
    assert some.turn() == {}  # each would need a block, and both are in flight
    assert (some.turn(), len(some.last_schedule.preempted)) != ({}, 0)
    some.run()


def test_repeats_are_foreseen_while_nothing_of_the_connector_can_change_a_schedule():
    some = engine(max_num_seqs=2)
    forecast = ScheduleForecast(some.scheduler)
    add(some, 4, output=30)
    some.turn()
    some.turn()
    assert forecast.repeats_left() > 0
    assert not forecast.independent_of_arrivals(newcomers=False)
    add(some, 8, stored=8, turns=2)
    some.turn()
    assert forecast.repeats_left() == 0  # workers must be told of the load
    some.turn()
    assert forecast.repeats_left() > 0  # until it has ended
    some.turn()
    assert forecast.repeats_left() == 0
