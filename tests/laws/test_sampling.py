"""Requests for several sequences, and outputs that end before the scheduler expects it."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.engine.engine import ParentRequest
from ksim.flow.events import Emitted, Finished
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError
from ksim.kv.cache.vllm import VllmCache
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.scheduling.job import Job, Run
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play
from ksim.testing.loop import loop
from tests.laws.happenings import facts, times
from tests.laws.tiny import uniform
from tests.properties import examples


def site(**serve):
    return Deployment.of(Scenario.of({
        "model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "nodes": 1, "power": {}, "serve": {
            "max_model_len": 512, "max_num_seqs": 8, "num_gpu_blocks_override": 60, **serve},
        "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 100.0}, "count": 12,
                                   "prompt": uniform(1, 90), "output": uniform(1, 30)}}}))


def load(seed, **more):
    one = {"arrivals": {"process": "poisson", "rate": 100.0}, "count": 12, "prompt": uniform(1, 90),
           "output": uniform(1, 30), **more}
    return Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "seed": seed,
                        "workload": {"synthetic": one}}).workload.requests(seed)


def requests(**more):
    """Requests whose outputs say how long each sequence is."""
    return st.lists(st.builds(
        lambda prompt, outputs, named: Request(
            0, 0.0, prompt, max(outputs), chunks=tuple(range(prompt // 16)) if named else (), n=len(outputs),
            outputs=tuple(outputs) if len(outputs) > 1 else ()),
        st.integers(1, 100), st.lists(st.integers(1, 20), min_size=1, max_size=4), st.booleans()),
        min_size=1, max_size=6).map(lambda found: [evolve(one, id=place, arrival=place * 1e-3)
                                                   for place, one in enumerate(found)])


@pytest.fixture(scope="module")
def sites():
    return {caching: site(enable_prefix_caching=caching) for caching in (True, False)}


@given(asked=requests(), caching=st.booleans(), policy=st.sampled_from(["fcfs", "shortest_remaining"]))
@examples(60)
def test_tokens_of_all_sequences_come_and_both_engines_agree(sites, asked, caching, policy):
    """One row a request: its first token is the first of any sequence, and its last the last of all."""
    results = [play(evolve(sites[caching], skips=skips), iter(asked)) for skips in (True, False)]
    table = results[0].history.requests
    assert table.output.tolist() == [request.output_tokens for request in asked]
    assert results[0].summary["completed"] == len(asked) == len([*results[0].log.of(Finished)])
    assert (table.ttft <= table.e2e).all()
    assert len(results[0].to_pandas("attribution")) == len(asked)
    assert facts(results[0].log) == facts(results[1].log)
    assert times(results[0].log) == pytest.approx(times(results[1].log), rel=1e-9)


@given(prompt=st.integers(1, 200), size=st.sampled_from([8, 16, 32]), chunk=st.sampled_from([16, 64]),
       beyond=st.integers(-12, 3), n=st.integers(2, 5), caching=st.booleans())
@examples(100)
def test_sequences_share_the_full_blocks_of_their_prompt_and_nothing_else(prompt, size, chunk, beyond, n, caching):
    whole = -(-prompt // chunk)
    request = Request(7, 0.0, prompt, 40, chunks=tuple(range(max(0, whole + beyond))), chunk_tokens=chunk, n=n)
    cache = VllmCache(200, size, prefix_caching=caching)
    for child in request.children():
        table = cache.block_table(child)
        cache.attach_prefix(table, cache.find_prefix(table, prompt))
        assert cache.allocate(table, prompt + 39)
        cache.publish(table, prompt + 39)
    shared = (prompt - 1) // size if caching else 0
    if request.named > prompt or prompt % size:  # a prompt of full blocks computes its last one again
        assert cache.pool.used == n * cache.blocks(prompt + 39) - (n - 1) * shared
    assert cache.pool.used <= shared + n * (cache.blocks(prompt + 39) - shared)


def test_a_session_goes_on_with_the_first_sequence():
    request = Request(7, 0.0, 40, 40, chunks=tuple(range(5)), session="a", n=3)
    first, *others = request.children()
    assert first.chunks == request.chunks and {child.chunks for child in others} == {(0, 1, 2)}
    assert [child.named for child in (first, *others)] == [80, 40, 40]


def test_a_parent_tells_the_tokens_of_its_children_by_steps():
    ended = []
    parent = ParentRequest(2, lambda: ended.append(True))
    jobs = [Job.of(Request(0, 0.0, 4, 4), number, 16) for number in range(2)]
    jobs[0].emitted, jobs[1].emitted = [Run(2, 4, 1)], [Run(3, 7, 2)]
    assert parent.admit(jobs[1]) and not parent.admit(jobs[0]) and parent.leads(jobs[1])
    assert not parent.finish(jobs[0]) and parent.finish(jobs[1])
    assert [(run.first, run.last, run.tokens) for run in parent.emitted] == [(2, 2, 1), (3, 3, 2), (4, 5, 1), (7, 7, 1)]
    parent()
    assert not ended
    parent()
    assert ended == [True]


@given(limit=st.integers(1, 60), output=st.integers(1, 40), seen=st.integers(1, 40), ahead=st.booleans())
@examples(60)
def test_what_ends_an_output_is_not_seen_before(limit, output, seen, ahead):
    """Two outputs that both end by a stop token, or are cut at the same limit: the same up to the first one's end."""
    schedules = []
    for length in (output, seen):
        made = loop(async_scheduling=ahead, max_model_len=512, blocks=20, max_num_batched_tokens=16)
        made.add(30, min(length, limit), limit=limit)
        made.add(20, 10)
        schedules.append([{job.number: tokens for job, tokens in made.turn().items()} for _ in range(50)])
    same = 1 + min(output, seen, limit)  # a prompt of two steps, of which the second one samples
    assert schedules[0][:same] == schedules[1][:same]


@pytest.mark.parametrize("sampling", [{"max_completion_tokens": 40}, {"max_completion_tokens": 40, "n": 2}])
def test_a_hidden_end_is_the_same_in_both_engines_and_takes_a_step_more(sampling):
    asked = [*load(3, **sampling)]
    assert all(request.max_tokens == 40 for request in asked)
    skipped, stepped = (play(evolve(site(num_gpu_blocks_override=200), skips=skips), iter(asked))
                        for skips in (True, False))
    assert facts(skipped.log) == facts(stepped.log)
    plain = play(site(num_gpu_blocks_override=200), (evolve(request, max_tokens=None) for request in asked))
    assert skipped.history.steps.tokens.sum() > plain.history.steps.tokens.sum()


def test_one_sequence_and_no_limit_change_nothing():
    plain, told = [*load(1)], [*load(1, n=1)]
    assert plain == told and all(request.n == 1 and request.max_tokens is None for request in plain)
    assert all(event.tokens == 1 for event in play(site(), iter(plain)).log.of(Emitted))


@pytest.mark.parametrize("asked, why", [
    ({"n": 2}, "its n is 2, and a request that one engine prefills for another has one sequence"),
    ({"beam_width": 1}, "its beam_width is 1, and a request that one engine prefills for another has one sequence")])
def test_a_request_that_one_engine_prefills_for_another_has_one_sequence(asked, why):
    load = {"arrivals": {"process": "burst"}, "count": 2, "prompt": uniform(300, 300), "output": uniform(3, 3)}
    split = {"model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "serve": {"max_model_len": 512},
             "pools": {"prefill": {"role": "prefill", "replicas": 1}, "decode": {"role": "decode", "replicas": 1}}}
    fleet = Fleet.of(Scenario.of({**split, "workload": {"synthetic": load}}))
    result = play(fleet, iter([Request(0, 0.0, 300, 3, **asked)]))
    assert [*result.history.requests.reasons.values()] == [why]
    with pytest.raises(ConfigError, match=next(iter(asked))):
        Fleet.of(Scenario.of({**split, "workload": {"synthetic": load | asked}}))
