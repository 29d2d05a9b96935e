"""vLLM's rules, one by one: who is in the batch, with how many tokens, and who is preempted."""

import pytest

from ksim.foundation.errors import ConfigError
from ksim.kv.cache import BlockTable
from ksim.scheduling.job import Limits, State
from ksim.scheduling.policies import ALL
from ksim.scheduling.policies.batching import DecodeFirst
from ksim.scheduling.policies.orders import Fcfs
from ksim.testing.loop import ROOMY, loop

# The budget.


def test_a_step_has_so_many_tokens_and_prompts_are_cut_to_fit():
    engine = loop(max_num_batched_tokens=100)
    a, b = engine.add(60), engine.add(60)
    assert engine.turn() == {a: 60, b: 40}
    assert engine.turn() == {a: 1, b: 20}
    assert engine.turn() == {a: 1, b: 1}


def test_running_jobs_come_before_waiting_ones_in_order_of_admission():
    engine = loop(max_num_batched_tokens=10)
    a, b = engine.add(8), engine.add(30)
    engine.turn()
    c = engine.add(3)
    assert list(engine.turn().items()) == [(a, 1), (b, 9)]
    engine.turns_of(b, 2)
    assert list(engine.turn().items()) == [(a, 1), (b, 1), (c, 3)]


def test_without_chunked_prefill_a_prompt_waits_until_all_of_it_fits():
    engine = loop(max_num_batched_tokens=100, max_model_len=100, enable_chunked_prefill=False)
    a, b = engine.add(60), engine.add(60)
    assert engine.turn() == {a: 60}
    assert engine.turn() == {a: 1, b: 60}


def test_a_request_yields_exactly_its_tokens():
    engine = loop()
    a, b = engine.add(5, output=1), engine.add(5, output=4)
    assert engine.turns_of(b, 6) == [5, 1, 1, 1, 0, 0]
    assert engine.finished == [a, b]
    assert (a.sampled, b.sampled) == (1, 4)
    assert engine.cache.pool.used == 0


def test_no_more_jobs_run_than_there_are_sequence_slots():
    engine = loop(max_num_seqs=2)
    a, b, c = (engine.add(5, output=2) for _ in range(3))
    assert engine.turn() == {a: 5, b: 5}
    assert engine.turn() == {a: 1, b: 1}
    assert engine.turn() == {c: 5}


def test_sequence_slots_can_be_fewer_than_the_budget_is_checked_against():
    engine = loop(max_num_seqs=2, max_num_active_seqs=1)
    a, _ = engine.add(5), engine.add(5)
    assert engine.turn() == {a: 5}


def test_an_output_ends_at_the_longest_sequence_the_model_takes():
    engine = loop(max_model_len=10)
    job = engine.add(7, output=100)
    engine.run()
    assert job.num_tokens == 10


# Caps on one job's share.


def test_a_long_prompt_gets_no_more_than_the_cap():
    engine = loop(long_prefill_token_threshold=10)
    a, b = engine.add(25), engine.add(25)
    assert engine.turn() == {a: 10, b: 10}
    assert engine.turn() == {a: 10, b: 10}
    assert engine.turn() == {a: 5, b: 5}


def test_a_job_that_is_alone_is_not_capped():
    engine = loop(long_prefill_token_threshold=10)
    job = engine.add(25)
    assert engine.turn() == {job: 25}


@pytest.mark.parametrize(("threshold", "cap"), [(10, 20), (25, 25)])
def test_the_adaptive_cap_is_at_least_a_fair_share_of_the_budget(threshold, cap):
    engine = loop(max_num_batched_tokens=60, max_num_seqs=2, long_prefill_token_threshold=threshold,
                  long_prefill_token_threshold_adaptive=True)
    a, b, _ = (engine.add(100) for _ in range(3))
    assert engine.turn() == {a: cap, b: cap}


# Admission.


def test_nobody_is_passed_over_for_not_fitting():
    engine = loop(blocks=10)
    engine.add(32)
    engine.turn()
    big, small = engine.add(16), engine.add(2)
    assert not {big, small} & engine.turn().keys()


def test_a_prompt_must_fit_whole_although_only_its_first_chunk_takes_blocks():
    engine = loop(blocks=10, max_num_batched_tokens=20, max_num_seqs=20)
    a, b = engine.add(12), engine.add(32)
    assert engine.turn() == {a: 12}
    assert engine.scheduler.running == [a]
    assert list(engine.scheduler.waiting) == [b]


def test_or_only_its_first_chunk():
    engine = loop(blocks=10, max_num_batched_tokens=20, max_num_seqs=20, scheduler_reserve_full_isl=False)
    a, b = engine.add(12), engine.add(32)
    assert engine.turn() == {a: 12, b: 8}


def test_nothing_is_reserved_so_prompts_admitted_side_by_side_can_run_out():
    engine = loop(blocks=10, max_num_batched_tokens=16, max_num_seqs=16, long_prefill_token_threshold=8)
    a, b = engine.add(24), engine.add(24)
    assert [engine.turn() for _ in range(2)] == [{a: 8, b: 8}] * 2
    assert engine.turn() == {a: 8}
    assert engine.last_schedule.preempted == [b]


def test_the_watermark_is_kept_free_at_admission_only():
    engine = loop(blocks=9, watermark=0.2)  # 2 of 10: vLLM counts a block that it never hands out
    a = engine.add(20, output=17)
    engine.turn()
    b = engine.add(5)
    assert engine.turns_of(b, 15) == [0] * 15
    engine.schedule()
    assert (engine.cache.pool.free, a.preemptions) == (0, 0)


def test_the_first_to_run_need_not_heed_the_watermark():
    engine = loop(blocks=9, watermark=0.5)
    job = engine.add(30)
    assert engine.turn() == {job: 30}


# The prefix cache.


def test_a_prompt_computed_before_is_not_computed_again():
    engine = loop()
    engine.add(10, output=1, chunks="ab")
    engine.turn()
    job = engine.add(10, chunks="ab")
    assert engine.turn() == {job: 2}
    assert job.cached == 8


def test_of_two_equal_prompts_admitted_in_one_step_the_second_hits_what_the_first_will_compute():
    engine = loop()
    a, b = engine.add(10, chunks="ab"), engine.add(10, chunks="ab")
    assert engine.turn() == {a: 10, b: 2}


def test_the_last_token_is_computed_again_and_with_it_its_block():
    engine = loop()
    a, b = engine.add(8, chunks="ab"), engine.add(8, chunks="ab")
    assert engine.turn() == {a: 8, b: 4}


def test_one_that_does_not_read_the_cache_fills_it_all_the_same():
    engine = loop()
    a, b = engine.add(10, chunks="ab"), engine.add(10, chunks="ab", reads_cache=False)
    assert engine.turn() == {a: 10, b: 10}
    engine.scheduler.abort(a)
    c = engine.add(10, chunks="ab")
    assert engine.turn()[c] == 2


# Running out of blocks.


def test_the_last_admitted_gives_way_and_starts_over_with_what_it_sampled():
    engine = loop(blocks=4, prefix_caching=False)
    a, b = engine.add(8, output=9), engine.add(7, output=3)
    assert engine.turn() == {a: 8, b: 7}
    assert engine.turn() == {a: 1}
    assert engine.last_schedule.preempted == [b]
    assert (b.state, b.num_computed_tokens, b.sampled, b.block_table.blocks) == (State.WAITING, 0, 1, [])
    assert engine.turns_of(b, 9) == [0, 0, 0, 0, 0, 0, 0, 8, 1]
    assert [job.sampled for job in engine.finished] == [9, 3]


def test_one_that_comes_back_finds_its_blocks_if_nobody_took_them():
    engine = loop(blocks=4)
    engine.add(8, output=3)
    b = engine.add(7, output=8)
    engine.turn()
    engine.turn()
    assert b.preemptions == 1
    assert engine.turns_of(b, 2) == [0, 4]  # of 8 known tokens, 4 are found


def test_a_step_that_took_blocks_away_admits_nobody():
    engine = loop(blocks=4)
    a, b = engine.add(8), engine.add(7)
    engine.turn()
    c = engine.add(1)
    assert engine.turn() == {a: 1}
    assert list(engine.scheduler.waiting) == [b, c]


def test_the_last_one_gives_way_itself():
    engine = loop(blocks=4)
    a, b = engine.add(7), engine.add(8)
    engine.turn()
    assert engine.turn() == {a: 1}
    assert engine.last_schedule.preempted == [b]


# Aborts.


def test_an_aborted_job_gives_its_blocks_back_at_once():
    engine = loop()
    a, b = engine.add(8), engine.add(8)
    engine.turn()
    engine.scheduler.abort(a)
    assert engine.cache.pool.used == 2
    assert engine.turn() == {b: 1}
    assert a.state is State.DONE


def test_an_aborted_job_that_waits_is_never_admitted():
    engine = loop()
    job = engine.add(8)
    engine.scheduler.abort(job)
    assert engine.turn() == {}


def test_what_an_aborted_job_has_in_flight_is_lost():
    engine = loop()
    job = engine.add(8)
    engine.schedule()
    engine.scheduler.abort(job)
    assert engine.update() == []
    assert job.sampled == 0


# Asynchronous scheduling.


def test_a_decode_runs_in_every_step_while_the_token_before_is_on_its_way():
    engine = loop(async_scheduling=True)
    job = engine.add(8, output=4)
    assert engine.turns_of(job, 6) == [8, 1, 1, 1, 0, 0]
    assert engine.finished == [job]


def test_an_end_by_a_stop_token_is_not_foreseen_so_one_token_more_is_computed():
    engine = loop(async_scheduling=True)
    job = engine.add(8, output=4, limit=20)
    assert engine.turns_of(job, 7) == [8, 1, 1, 1, 1, 0, 0]
    assert (job.sampled, engine.finished) == (4, [job])


def test_an_end_by_the_longest_sequence_is_foreseen():
    engine = loop(async_scheduling=True, max_model_len=12)
    job = engine.add(8, output=50)
    assert engine.turns_of(job, 6) == [8, 1, 1, 1, 0, 0]


def test_a_sequence_slot_comes_free_one_schedule_later():
    for run_ahead, turns in ((False, [0, 0, 5]), (True, [0, 0, 0, 5])):
        engine = loop(max_num_seqs=1, async_scheduling=run_ahead)
        engine.add(5, output=2)
        assert engine.turns_of(engine.add(5), len(turns)) == turns


def test_one_preempted_with_a_token_on_its_way_blocks_nobody_and_waits_until_it_is_back():
    engine = loop(blocks=4, async_scheduling=True, prefix_caching=False)
    a, b = engine.add(8, output=9), engine.add(7)
    engine.turn()
    engine.schedule()
    assert (engine.last_schedule.preempted, b.num_output_placeholders) == ([b], 1)
    engine.scheduler.abort(a)
    c = engine.add(3)
    assert engine.schedule() == {c: 3}
    engine.take_in_oldest()
    assert engine.schedule() == {c: 1, b: 8}


def test_a_block_can_be_found_when_its_last_token_is_back_even_if_its_job_rests():
    class Resting:
        def propose(self, waiting, running, now):
            return [(job, ALL) for job in (*running, *waiting) if now != 2]

    engine = loop(policy=Resting(), async_scheduling=True)
    job = engine.add(7, chunks="abc")
    assert engine.turns_of(job, 3) == [7, 1, 0]
    assert engine.cache.find_prefix(BlockTable("ab"), 9).tokens == 8


# Several batches in flight.


def test_with_two_stages_two_jobs_take_turns():
    engine = loop(pipeline_parallel_size=2, max_num_batched_tokens=8, max_num_seqs=8)
    a, b = engine.add(8), engine.add(8)
    assert [engine.turn() for _ in range(6)] == [{a: 8}, {b: 8}, {a: 1}, {b: 1}, {a: 1}, {b: 1}]


def test_chunks_of_a_prompt_follow_each_other_through_the_stages():
    engine = loop(pipeline_parallel_size=3, max_num_batched_tokens=8, max_num_seqs=8)
    job = engine.add(24)
    assert engine.turns_of(job, 7) == [8, 8, 8, 0, 0, 1, 0]


def test_run_ahead_over_two_stages_a_job_waits_until_its_token_is_sampled():
    engine = loop(pipeline_parallel_size=2, async_scheduling=True)
    job = engine.add(8, output=4)
    assert engine.turns_of(job, 8) == [8, 0, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("policy", [Fcfs(), DecodeFirst(chunk=6)])
def test_a_preempted_job_is_passed_over_until_its_prompt_chunk_in_flight_is_back(policy):
    engine = loop(policy=policy, pipeline_parallel_size=3, blocks=8, prefix_caching=False, max_num_batched_tokens=6,
                  max_num_seqs=6, scheduler_reserve_full_isl=False)
    a, b, c = engine.add(9), engine.add(24), engine.add(2)
    assert [engine.turn() for _ in range(8)] == [
        {a: 6}, {a: 3, b: 3}, {b: 6}, {b: 6}, {a: 1, b: 5}, {}, {c: 2}, {a: 1, b: 5}]
    assert b.preemptions == 1


# Prefill cadence.


def test_prompts_are_let_in_only_every_so_many_steps_while_others_decode():
    engine = loop(prefill_schedule_interval=3)
    engine.add(8)
    engine.turn()
    assert engine.turns_of(engine.add(8), 4) == [0, 0, 8, 1]


def test_a_held_step_passes_over_a_prompt_that_runs():
    engine = loop(prefill_schedule_interval=3, max_num_batched_tokens=10, max_num_seqs=10)
    a, b = engine.add(4), engine.add(20)
    assert engine.turn() == {a: 4, b: 6}
    assert [engine.turn() for _ in range(4)] == [{a: 1}, {a: 1}, {a: 1, b: 9}, {a: 1}]


def test_the_last_token_of_a_prompt_that_runs_is_prefill_too():
    engine = loop(prefill_schedule_interval=3, max_num_batched_tokens=10, max_num_seqs=10)
    a, b = engine.add(4), engine.add(16)
    for _ in range(4):
        engine.turn()
    assert [engine.turn() for _ in range(3)] == [{a: 1}, {a: 1}, {a: 1, b: 1}]
    assert engine.turns_of(engine.add(5), 3) == [0, 0, 5]


def test_nothing_is_held_while_nobody_decodes_or_some_are_left_waiting():
    engine = loop(prefill_schedule_interval=3, max_num_batched_tokens=10, max_num_seqs=10)
    a, b, c = engine.add(12), engine.add(12), engine.add(4)
    assert [engine.turn() for _ in range(3)] == [{a: 10}, {a: 2, b: 8}, {a: 1, b: 4, c: 4}]


# What vLLM refuses.


@pytest.mark.parametrize(("limits", "message"), [
    ({"max_num_active_seqs": 101}, r"max_num_active_seqs: \(101\) cannot be greater than max_num_seqs \(100\)"),
    ({"long_prefill_token_threshold": 1001}, r"\(1001\) cannot be greater than max_model_len \(1000\)"),
    ({"max_num_batched_tokens": 99}, r"\(99\) must be greater than or equal to max_num_seqs \(100\)"),
    ({"enable_chunked_prefill": False, "max_num_batched_tokens": 500}, "longer prompts could never be scheduled"),
])
def test_says_what_limits_contradict_each_other(limits, message):
    with pytest.raises(ConfigError, match=message):
        Limits(**(ROOMY | limits)).check()
