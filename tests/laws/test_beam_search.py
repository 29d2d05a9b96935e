"""Beam searches: a request for one token for each beam and step, and one answer at the end."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.events import Preempted, Received, Stepped
from ksim.flow.request import Request
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import play
from tests.laws.happenings import facts, times
from tests.laws.tiny import uniform
from tests.properties import examples


def scenario(seed=0, **serve):
    return Scenario.of({
        "model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "seed": seed,
        "serve": {"max_model_len": 256, "max_num_seqs": 8, "num_gpu_blocks_override": 60, **serve},
        "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 100.0}, "count": 12,
                                   "prompt": uniform(1, 90), "output": uniform(1, 30)}}})


@pytest.fixture(scope="module")
def sites():
    return {caching: Deployment.of(scenario(enable_prefix_caching=caching)) for caching in (True, False)}


searches = st.lists(st.tuples(st.integers(1, 70), st.integers(1, 12), st.sampled_from([0, 1, 2, 5]), st.booleans()),
                    min_size=1, max_size=4)


@given(drawn=searches, caching=st.booleans())
@examples(25)
def test_one_token_for_each_beam_and_step_and_all_of_them_at_the_end(sites, drawn, caching):
    asked = [Request(place, place * 1e-3, prompt, output, beam_width=width,
                     chunks=tuple(range(prompt // 16)) if named else ())
             for place, (prompt, output, width, named) in enumerate(drawn)]
    skipped, stepped = (play(evolve(sites[caching], skips=skips), iter(asked)) for skips in (True, False))
    assert facts(skipped.log) == facts(stepped.log)
    assert times(skipped.log) == pytest.approx(times(stepped.log), rel=1e-9)
    table, steps = skipped.history.requests, [*skipped.log.of(Stepped)]
    assert table.output.tolist() == [request.output_tokens for request in asked]
    sent = sum(1 + (request.output - 1) * (request.beam_width or 1) for request in asked)
    assert sum(step.batch.samples for step in steps) == sent
    for request, first, last in zip(asked, table.first_token, table.last_token, strict=True):
        assert first == last or not request.beam_width
    assert skipped.summary["unattributed_energy_joules"] == pytest.approx(0.0, abs=1e-9)
    assert len(skipped.to_pandas("attribution")) == len(asked) == len([*skipped.log.of(Received)])


def rows(result):
    """New and cached tokens of each request for a token, in order."""
    return [(new, context) for step in result.log.of(Stepped) for _, new, context in step.batch.prompts]


def test_beams_share_the_full_blocks_of_what_they_have_in_common():
    """Prompt and first tokens fill three blocks: then each beam computes what follows them, and no more."""
    here = Deployment.of(scenario())
    result = play(here, iter([Request(0, 0.0, 45, 9, beam_width=4)]))
    found = rows(result)
    assert found[0] == (45, 0) and len(found) == 1 + 4 * 8
    assert {new + context for new, context in found} == set(range(45, 54))
    assert all(context == (new + context - 1) // 16 * 16 or new + context > 48 for new, context in found[1:])
    late = [context for new, context in found if new + context == 53]
    assert set(late) <= {32, 48} and 48 in late  # one block for each ancestor that all tokens up to 48 have in common
    alone = play(Deployment.of(scenario(enable_prefix_caching=False)), iter([Request(0, 0.0, 45, 9, beam_width=4)]))
    assert {context for _, context in rows(alone)} == {0} and len(rows(alone)) == len(found)


def test_survivors_depend_on_the_seed_alone():
    asked = Request(0, 0.0, 45, 60, beam_width=5)
    first, again, other = (play(Deployment.of(scenario(seed)), iter([asked])) for seed in (1, 1, 2))
    used = [[step.blocks for step in result.log.of(Stepped)] for result in (first, again, other)]
    assert used[0] == used[1] != used[2]
    assert rows(first) == rows(other)  # a beam always finds the full blocks of its parent


def test_a_search_goes_on_to_max_tokens_and_to_the_end_of_the_context():
    asked = [Request(0, 0.0, 45, 3, beam_width=2, max_tokens=7), Request(1, 1.0, 250, 40, beam_width=2)]
    result = play(Deployment.of(scenario()), iter(asked))
    assert len(rows(result)) == 1 + 2 * 6 + 1 + 2 * 5
    assert result.history.requests.output.tolist() == [6, 12]


@pytest.mark.parametrize("asked, why", [
    ({"beam_width": 11}, "its beam_width is 11, which needs 22 log-probabilities at each place, more than max_logprobs"
                         " = 20; raise that, or search less"),
    ({"beam_width": 2, "n": 2}, "its n is 2, and a beam search returns beam_width = 2 sequences"),
    ({"beam_width": 2, "prompt_logprobs": 1}, "its prompt_logprobs are not computed by a beam search")])
def test_what_vllm_refuses_is_refused(asked, why):
    result = play(Deployment.of(scenario()), iter([Request(0, 0.0, 20, 2, **asked)]))
    assert [*result.history.requests.reasons.values()] == [why]


@given(lengths=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=4),
       prompt=st.integers(1, 100), ahead=st.booleans())
@examples(25)
def test_joules_and_preemptions_of_several_sequences_add_up(lengths, prompt, ahead):
    asked = [Request(place, place * 1e-3, prompt, max(outputs), n=len(outputs),
                     outputs=tuple(outputs) if len(outputs) > 1 else ()) for place, outputs in enumerate(lengths)]
    result = play(Deployment.of(scenario(num_gpu_blocks_override=17, async_scheduling=ahead)), iter(asked))
    assert result.summary["completed"] == len(asked)
    assert result.summary["unattributed_energy_joules"] == pytest.approx(0.0, abs=1e-9)
    assert result.summary["preemptions"] >= len([*result.log.of(Preempted)])
    assert len(result.to_pandas("attribution")) == len(asked)


def test_preemptions_of_all_sequences_are_counted():
    asked = [Request(0, 0.0, 60, 60, n=4)]
    result = play(Deployment.of(scenario(num_gpu_blocks_override=17)), iter(asked))
    jobs = {}
    for step in result.log.of(Stepped):
        for _, new, context in step.batch.prompts:
            jobs[new + context] = jobs.get(new + context, 0) + 1
    again = sum(count for length, count in jobs.items() if length > 60)
    assert result.summary["preemptions"] == again > len([*result.log.of(Preempted)])
