"""An engine that offloads, turn by turn; tests/golden/offload has whole recordings of vLLM's."""

from typing import Any

from ksim.scheduling.engine_loop import ScheduleForecast
from ksim.scheduling.job import State
from tests.kv.offload.engines import connector_of, engine, loaded, settle

ALIKE = [("a", 0), ("a", 1), ("a", 2)]


def begun(loop: Any) -> list[tuple[int, bool, list[int]]]:
    """The copies that the latest schedule began: number, whether it loads, and chunks."""
    return [(copy.number, copy.loads, [*copy.chunks]) for copy in loop.last_schedule.copies]


def copies(loop: Any) -> list[Any]:
    """All copies so far."""
    every: list[Any] = loop.connector.begun
    return every


def test_a_prompt_is_stored_with_the_batch_that_computes_it_and_loaded_by_the_next_request():
    loop = engine(prefix_caching=False, turns=[3, 2])
    loop.add(12, 2, chunks=ALIKE)
    loop.turn()
    assert begun(loop) == [(0, False, [0, 1, 2])]
    settle(loop)
    job = loop.add(13, 1, chunks=ALIKE)
    loop.turn()
    assert begun(loop) == [(1, True, [0, 1, 2])] and job.state is State.LOADING
    loop.turns_of(job, 2)
    assert job.state is State.LOADING
    assert loop.turn() == {job: 1} and job.num_computed_tokens == 13


def test_a_request_waits_for_chunks_that_are_being_stored():
    loop = engine(prefix_caching=False, turns=[4])
    loop.add(12, 1, chunks=ALIKE)
    loop.turn()
    second = loop.add(13, 1, chunks=ALIKE)
    assert loop.turns_of(second, 4) == [0, 0, 0, 0] and second.state is State.WAITING
    assert second in loop.scheduler.waiting
    loop.turn()
    assert second.state is State.LOADING


def test_with_a_prefix_cache_a_request_waits_for_the_load_of_another_and_then_finds_it_on_the_gpu():
    loop = engine(blocks=8, turns=[3])
    loop.add(12, 1, chunks=ALIKE)
    settle(loop)
    loop.add(30, 1)  # drives the prefix out of the GPU
    settle(loop)
    one, other = (loop.add(14, 1, chunks=ALIKE) for _ in range(2))
    loop.turn()
    assert (one.state, other.state) == (State.LOADING, State.WAITING)
    settle(loop)
    assert (loaded(loop, one), loaded(loop, other), other.cached) == (12, 0, 12)


def test_without_one_each_loads_for_itself():
    loop = engine(prefix_caching=False, turns=[3])
    loop.add(12, 1, chunks=ALIKE)
    settle(loop)
    pair = [loop.add(14, 1, chunks=ALIKE) for _ in range(2)]
    loop.turn()
    assert [job.state for job in pair] == [State.LOADING, State.LOADING]


def test_what_found_no_room_is_offered_again_in_every_batch_until_it_fits():
    loop = engine(chunks=3, prefix_caching=False, turns=[1, 9])
    loop.add(12, 1)
    settle(loop)
    loop.turn()
    loop.add(13, 3, chunks=ALIKE)
    loop.turn()  # evicts all three: they are idle
    assert begun(loop) == [(1, False, [0, 1, 2])]
    other = loop.add(4, 30)
    for _ in range(9):
        loop.turn()
        assert connector_of(loop).refused == [(other, other.num_computed_tokens // 4)]
        assert ScheduleForecast(loop.scheduler).repeats_left() <= 0
    loop.turn()
    assert begun(loop) == [(2, False, [0, 1, 2])]


def test_stores_of_a_preempted_request_are_hurried():
    loop = engine(blocks=6, turns=[50])
    loop.add(11, 12)
    victim = loop.add(8, 12)
    while not victim.preemptions:
        loop.turn()
    numbers = [copy.number for copy in copies(loop) if copy.job is victim]
    assert numbers and [*loop.last_schedule.hurried] == numbers


def test_a_store_of_an_ended_request_is_hurried_once_its_blocks_go_to_another():
    loop = engine(blocks=4, prefix_caching=False, turns=[50])
    loop.add(12, 1)
    loop.turn()
    assert not loop.last_schedule.hurried
    loop.add(5, 1)
    loop.turn()
    assert [*loop.last_schedule.hurried] == [0]


def test_output_is_stored_block_by_block_unless_only_prompts_are():
    for prompt_only, stored in ((False, 5), (True, 2)):
        loop = engine(prompt_only=prompt_only)
        loop.add(10, 11)
        settle(loop)
        assert sum(len(copy.chunks) for copy in copies(loop)) == stored


def test_a_request_that_reads_no_cache_loads_nothing_and_is_stored():
    loop = engine(prefix_caching=False)
    for reads_cache in (True, False):
        job = loop.add(12, 1, chunks=ALIKE, reads_cache=reads_cache)
        settle(loop)
    assert loaded(loop, job) == 0
    loop.add(12, 1, chunks=ALIKE)
    settle(loop)
    assert loaded(loop, loop.jobs[-1]) == 12


def test_a_chunk_of_several_blocks_is_loaded_from_where_the_gpu_ends():
    loop = engine(blocks=8, blocks_per_chunk=2)
    chunks = [("a", place) for place in range(4)]
    loop.add(16, 1, chunks=chunks)
    settle(loop)
    loop.scheduler.cache.invalidate(_first_blocks(loop), 1)
    loop.turn()
    job = loop.add(17, 1, chunks=chunks)
    loop.turn()
    (copy,) = loop.last_schedule.copies
    assert ([*copy.chunks], len(copy.blocks), copy.tokens, job.cached) == ([0, 1], 3, 12, 4)


def _first_blocks(loop: Any) -> Any:
    table = loop.scheduler.cache.block_table(loop.jobs[0].request)
    loop.scheduler.cache.attach_prefix(table, loop.scheduler.cache.find_prefix(table, 17))
    blocks = type(table)(blocks=[*table.blocks])
    loop.scheduler.cache.free(table)
    return blocks


def test_only_schedules_that_fill_or_hand_out_a_block_are_made_one_by_one():
    loop = engine(block_tokens=16, blocks=50)
    job = loop.add(17, 40)
    loop.turns_of(job, 3)
    assert 0 < ScheduleForecast(loop.scheduler).repeats_left() < 16
    prompts = engine(block_tokens=16, blocks=50, prompt_only=True)
    job = prompts.add(17, 40)
    prompts.turns_of(job, 3)
    assert ScheduleForecast(prompts.scheduler).repeats_left() > 30


def test_routers_see_what_could_be_loaded_beyond_the_gpus_hit():
    loop = engine(blocks_per_chunk=2, prefix_caching=False)
    chunks = [("a", place) for place in range(6)]
    job = loop.add(21, 1, chunks=chunks)
    settle(loop)
    connector = connector_of(loop)
    asked = job.request
    hits = [connector.tier_hits(asked, cached) for cached in (0, 4, 8, 16)]
    assert hits == [{"cpu": 16}, {"cpu": 12}, {"cpu": 8}, {}]
