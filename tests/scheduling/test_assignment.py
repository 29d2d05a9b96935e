"""What a schedule decided, as the batch that is to be computed."""

from ksim.scheduling.assignment import Assignment
from tests.scheduling.loop import loop


def test_an_empty_assignment_is_false():
    assert not Assignment()
    assert Assignment().batch().tokens == 0


def test_the_batch_says_what_is_computed_and_not_for_whom():
    engine = loop(max_num_batched_tokens=20, max_num_seqs=20)
    engine.add(5)
    engine.turn()
    engine.add(12)
    engine.add(9)
    engine.schedule()
    batch = engine.assignment.batch()
    assert (list(batch.contexts), list(batch.chunks)) == ([5], [(12, 0), (7, 0)])
    assert (batch.samples, batch.tokens, batch.sequences) == (2, 20, 3)


def test_the_last_token_of_a_prompt_is_computed_like_a_decode():
    engine = loop(max_num_batched_tokens=8, max_num_seqs=8)
    engine.add(9)
    engine.turn()
    engine.schedule()
    batch = engine.assignment.batch()
    assert (list(batch.contexts), list(batch.chunks), batch.samples) == ([8], [], 1)
