"""What sets the policies apart; what they have in common is in tests/laws/test_policies.py."""

from ksim.scheduling.policies.batching import DecodeFirst
from ksim.scheduling.policies.orders import Priority, ShortestPromptFirst
from ksim.testing.loop import loop


def test_by_priority_the_most_urgent_is_admitted_first_and_of_equals_the_first_to_come():
    engine = loop(policy=Priority())
    a, b, c = engine.add(5, priority=1), engine.add(5, priority=0), engine.add(5, priority=0)
    assert list(engine.turn()) == [b, c, a]


def test_by_priority_the_least_urgent_gives_way_even_if_it_is_in_the_batch_and_its_tokens_return():
    engine = loop(policy=Priority(), blocks=4, block_tokens=8, max_num_batched_tokens=10, max_num_seqs=10,
                  scheduler_reserve_full_isl=False)
    a = engine.add(9, priority=5)
    engine.turn()
    b, c = engine.add(8), engine.add(20)
    assert engine.turn() == {a: 1, b: 8, c: 1}
    assert engine.turn() == {b: 1, c: 9}
    assert engine.last_schedule.preempted == [a]


def test_by_priority_one_that_gives_way_itself_does_not_end_the_pass():
    engine = loop(policy=Priority(), blocks=4)
    a = engine.add(7, priority=5)
    engine.turn()
    b = engine.add(7)
    assert engine.turn() == {a: 1, b: 7}
    assert engine.turn() == {b: 1}
    assert engine.last_schedule.preempted == [a]


def test_by_priority_one_that_gave_way_goes_back_to_its_place():
    engine = loop(policy=Priority(), blocks=4)
    a, b = engine.add(8, priority=1), engine.add(7, priority=2)
    engine.turn()
    c, d = engine.add(20, priority=1), engine.add(20, priority=3)
    assert engine.turn() == {a: 1}
    assert list(engine.scheduler.waiting) == [c, b, d]


def test_the_shortest_prompt_is_admitted_first():
    engine = loop(policy=ShortestPromptFirst())
    a, b, c = engine.add(9), engine.add(4), engine.add(4)
    assert list(engine.turn()) == [b, c, a]


def test_decodes_come_before_prompts_which_share_what_is_left():
    engine = loop(policy=DecodeFirst(chunk=6), max_num_batched_tokens=10, max_num_seqs=10)
    a, b = engine.add(30), engine.add(4)
    assert list(engine.turn().items()) == [(a, 6), (b, 4)]
    assert list(engine.turn().items()) == [(b, 1), (a, 6)]
