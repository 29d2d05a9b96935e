"""What a schedule decided, as the batch that is to be computed."""

from ksim.scheduling.job import Schedule
from ksim.testing.loop import loop


def test_an_empty_assignment_is_false():
    assert not Schedule()
    assert Schedule().batch().tokens == 0


def test_the_batch_says_what_is_computed_and_whose_prompts_are_in_it():
    engine = loop(max_num_batched_tokens=20, max_num_seqs=20)
    engine.add(5)
    engine.turn()
    engine.add(12)
    engine.add(9)
    engine.schedule()
    batch = engine.last_schedule.batch()
    assert (list(batch.contexts), list(batch.chunks)) == ([5], [(12, 0), (7, 0)])
    assert (batch.samples, batch.tokens, batch.sequences) == (2, 20, 3)
    assert batch.prompts == ((1, 12, 0), (2, 7, 0))


def test_the_last_token_of_a_prompt_is_computed_like_a_decode():
    engine = loop(max_num_batched_tokens=8, max_num_seqs=8)
    engine.add(9)
    engine.turn()
    engine.schedule()
    batch = engine.last_schedule.batch()
    assert (list(batch.contexts), list(batch.chunks), batch.samples) == ([8], [], 1)
    assert batch.prompts == ((0, 1, 8),)


def test_what_a_preempted_job_computes_again_is_a_prompt():
    engine = loop(blocks=4, max_num_batched_tokens=8, max_num_seqs=8, prefix_caching=False)
    engine.add(7, 6)
    engine.add(6, 6)
    prompts = []
    while len(engine.finished) < 2:
        engine.schedule()
        prompts += engine.last_schedule.batch().prompts
        engine.update()
    assert engine.jobs[1].preemptions == 1
    assert prompts == [(0, 7, 0), (1, 1, 0), (1, 5, 1), (1, 7, 0)]


def test_a_request_that_the_cache_has_but_for_one_token_looks_up_all_its_blocks():
    engine = loop(block_tokens=4)
    engine.add(9, chunks="abc")
    engine.turn()
    engine.add(9, chunks="abc")
    engine.schedule()
    assert engine.last_schedule.batch().prompts == ((1, 1, 8),)
    assert engine.last_schedule.touched(4) == 3
