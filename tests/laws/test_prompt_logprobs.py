"""Log-probabilities of prompts: which rows of logits a step computes for them, and what that costs."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.features.sampling import FEATURE
from ksim.flow.batch import Batch
from ksim.flow.events import Admitted, Stepped
from ksim.flow.request import Request
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import play
from tests.laws.happenings import facts, times
from tests.laws.tiny import uniform
from tests.properties import examples

LOGITS = 2 * 2048 * 128256  # FLOP of a row


def site(**serve):
    return Deployment.of(Scenario.of({
        "model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "power": {},
        "serve": {"max_model_len": 512, "max_num_seqs": 8, "num_gpu_blocks_override": 60, **serve},
        "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 100.0}, "count": 12,
                                   "prompt": uniform(1, 90), "output": uniform(1, 30)}}}))


asking = st.lists(st.tuples(st.integers(1, 100), st.integers(1, 20), st.sampled_from([None, None, 0, 1, 7]),
                            st.integers(1, 2)), min_size=1, max_size=6)


def requests(drawn):
    return [Request(place, place * 1e-3, prompt, output, chunks=tuple(range(prompt // 16)), prompt_logprobs=number, n=n)
            for place, (prompt, output, number, n) in enumerate(drawn)]


@given(drawn=asking, tokens=st.sampled_from([16, 48, 512]))
@examples(30)
def test_a_step_scores_all_its_tokens_if_any_prompt_in_it_asks(drawn, tokens):
    """As vLLM 0.33 does: `compute_prompt_logprobs` takes the rows of all tokens, and `includes_prompt` says when."""
    asked, here = requests(drawn), site(max_num_batched_tokens=tokens, max_num_seqs=8)
    wanted = {request.id: request.prompt_logprobs for request in asked}
    skipped, stepped = (play(evolve(here, skips=skips), iter(asked)) for skips in (True, False))
    assert facts(skipped.log) == facts(stepped.log)
    assert times(skipped.log) == pytest.approx(times(stepped.log), rel=1e-9)
    again = any(event.again for event in skipped.log.of(Admitted))
    for step in skipped.log.of(Stepped):
        numbers = {wanted[who] for who, _, _ in step.batch.prompts} - {None}
        assert again or step.batch.prompt_logprobs == max(numbers, default=None)
        spans = [(span, count) for span, count in step.step_costs[0].counted() if span.label.startswith("logprobs.")]
        flops = sum(span.flops * count for span, count in spans if span.label == "logprobs.lm_head")
        assert flops == step.batch.prompt_logits * LOGITS
        looked = [span for span, _ in spans if span.label == "logprobs.top_tokens"]
        assert bool(looked) == bool(step.batch.prompt_logprobs)


def test_rows_are_taken_in_chunks_and_cost_nothing_where_nobody_asks():
    (timer,) = site().timers()
    scoring = FEATURE.with_prompt_logprobs(timer)
    plain = Batch.of((1500, 0), (700, 30), (1, 90))
    assert scoring.step_cost(plain) == timer.step_cost(plain)
    assert str(scoring.summarize(plain)) == str(timer.summarize(plain))
    scored = evolve(plain, prompt_logprobs=1)
    heads = [(kernel, count) for kernel, _, count in scoring.launches(scored) if "x128256x" in str(kernel)]
    rows = [int(str(kernel).split("x")[0]) for kernel, _ in heads]
    assert rows == [3, 1024, 1024, 153] and plain.prompt_logits == 0 and scored.prompt_logits == 2201
    assert scoring.step_cost(scored).costs.seconds > timer.step_cost(scored).costs.seconds
    together, one_by_one = scoring.summarize([scored, plain]), [scoring.summarize(batch) for batch in (scored, plain)]
    assert [summary.seconds for summary in together] == pytest.approx([summary.seconds for summary in one_by_one])


def test_a_prompt_that_is_scored_does_not_read_the_prefix_cache():
    made = [Request(place, place * 0.5, 64, 2, chunks=tuple(range(4)), prompt_logprobs=number)
            for place, number in enumerate([None, 3, None])]
    result = play(site(), iter(made))
    assert result.history.requests.cached.tolist() == [0, 0, 48]


def test_a_prompt_that_is_computed_again_after_its_first_token_is_not_scored_again():
    made = [Request(place, 0.0, 100, 60, prompt_logprobs=2) for place in range(2)]
    result = play(site(num_gpu_blocks_override=16), iter(made))
    (again,) = (event for event in result.log.of(Admitted) if event.again)
    assert again.known > 100
    scored = [step for step in result.log.of(Stepped) if step.batch.prompt_logprobs is not None]
    assert sum(step.batch.tokens for step in scored) <= 201 and all(step.time < again.time for step in scored)


@pytest.mark.parametrize("most, asked, why", [
    (20, 21, "its prompt_logprobs are 21, more than max_logprobs = 20; set that to 21, or ask for less"),
    (20, -1, "its prompt_logprobs are all of the vocabulary, more than max_logprobs = 20; set that to -1, or ask for"
             " less"),
    (-1, -1, ""), (20, 20, ""), (0, 0, "")])
def test_more_than_max_logprobs_is_refused(most, asked, why):
    result = play(site(max_logprobs=most), iter([Request(0, 0.0, 20, 2, prompt_logprobs=asked)]))
    assert list(result.history.requests.reasons.values()) == ([why] if why else [])
