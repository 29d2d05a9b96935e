"""Mooncake's Algorithm 1 (arXiv 2407.00079) on states worked out by hand."""

import pytest
from attrs import evolve

from ksim.cluster.routers.mooncake import Mooncake
from ksim.flow.request import Request
from tests.cluster.views import Millisecond, View

PROMPT = Request(0, 0.0, prompt=1000, output=10)


def router(**options) -> Mooncake:
    made = Mooncake(**options)
    made.measured({number: Millisecond() for number in range(4)})
    return made


def chosen(made: Mooncake, *cached: int, request: Request = PROMPT) -> int | None:
    answer = made.choose(request, [View(number, 1, tokens) for number, tokens in enumerate(cached)], 0.0)
    return None if answer is None else answer.number


def test_queue_and_prefill_add_up():
    made = router()
    assert chosen(made, 0, 800) == 1  # 1 s against 0.2 s
    assert chosen(made, 0, 800, request=evolve(PROMPT, id=1)) == 1  # 1 s against 0.2 + 0.2 s
    assert [-score for score in made.scores] == pytest.approx([1.0, 0.4])
    for number in (2, 3):
        chosen(made, 0, 800, request=evolve(PROMPT, id=number))
    assert chosen(made, 0, 800, request=evolve(PROMPT, id=4)) == 0  # 1 s against 4 x 0.2 + 0.2 s: the first


def test_a_first_token_shortens_the_queue():
    made = router()
    chosen(made, 0, 800)
    made.on_first_token(PROMPT, 1, 0.1)
    chosen(made, 0, 800, request=evolve(PROMPT, id=1))
    assert [-score for score in made.scores] == pytest.approx([1.0, 0.2])


def test_what_another_has_can_be_transferred():
    """2000 tokens/s: engine 0 gets 900 tokens in 0.45 s, and prefills the other 100."""
    made = router(transfer_rate=2000.0)
    chosen(made, 0, 900)
    assert [-score for score in made.scores] == pytest.approx([0.55, 0.1])


def test_little_more_is_not_worth_a_transfer():
    """best_prefix_len / prefix_len < kvcache_balancing_threshold: 900 / 500 is less than 2."""
    made = router(transfer_rate=2000.0, kvcache_balancing_threshold=2.0)
    chosen(made, 500, 900, 400)
    assert [-score for score in made.scores] == pytest.approx([0.5, 0.1, 0.25 + 0.1])


def test_without_a_way_nobody_counts_on_others():
    made = router()
    chosen(made, 0, 900)
    assert [-score for score in made.scores] == pytest.approx([1.0, 0.1])


def test_a_broken_target_is_refused_early():
    made = router(ttft_slo="300 ms")
    assert chosen(made, 0, 800) == 1
    assert chosen(made, 0, 800, request=evolve(PROMPT, id=1)) is None
    assert made.refusal == "its estimated TTFT of 0.4 s breaks the target of 0.3 s"
    made.on_first_token(PROMPT, 1, 0.1)
    assert chosen(made, 0, 800, request=evolve(PROMPT, id=1)) == 1


def test_so_is_one_of_the_time_between_tokens():
    made = router(tbt_slo="5 ms")
    engines = [View(0, 4, 0, running=4), View(1, 5, 0, running=5)]
    assert made.choose(PROMPT, engines, 0.0).number == 0
    assert made.choose(evolve(PROMPT, id=1), [engines[1]], 0.0) is None
    assert made.refusal == "its estimated TBT of 0.006 s breaks the target of 0.005 s"
