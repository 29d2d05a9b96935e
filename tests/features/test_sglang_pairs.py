"""Pools that prefill and decode apart as SGLang does: who waits for whom, what memory is held, and what is computed."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ksim import Scenario
from ksim.flow.events import Admitted, Finished, Preempted, Prefilled, Rejected, Released, Stepped, Transferred
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.scheduling.sglang.split import DecodeSide, PrefillSide
from ksim.simulation.fleet import Fleet
from tests.explore.laws import (
    attribution_adds_up,
    blocks_are_free,
    it_is_the_same_step_by_step,
    joules_are_conserved,
    links_conserve_bytes,
    requests_are_accounted_for,
    run_of,
)
from tests.properties import examples

PREFILL, DECODE = 0, 1


ONE = {"count": 1, "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 1},
       "output": {"kind": "fixed", "value": 1}}


def fleet(prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, load: dict[str, Any] = ONE,
          **serve: Any) -> Fleet:
    """One engine that prefills and one that decodes, with settings of SGLang's own for each."""
    shared = {"kv_transfer_config": {"kv_connector": "sglang"}, **serve}
    pools = {name: {"role": name, "serve": {"sglang": {"context_length": 2000, **(own or {})}}}
             for name, own in (("prefill", prefill), ("decode", decode))}
    return Fleet.of(Scenario.of({
        "engine": "sglang-0.5.23", "model": "llama-3.2-1b", "gpu": "h100", "oracle": "roofline", "serve": shared,
        "pools": pools, "workload": {"synthetic": load}}))


def play(made: Fleet, *requests: tuple[int, int], apart: float = 0.0) -> Log:
    """Play requests with so many prompt and output tokens, which come so many seconds apart."""
    return run_of(made, [Request(number, number * apart, prompt, output)
                         for number, (prompt, output) in enumerate(requests)]).result.log


def when(log: Log, kind: type, request: int, engine: int | None = None) -> float:
    """The time of the first event of a *kind* that is about *request*."""
    return next(event.time for event in log.of(kind)
                if event.request_id == request and engine in (None, getattr(event, "engine", engine)))


def allocated(log: Log, request: int) -> float:
    return next(event.allocated for event in log.of(Transferred) if event.request_id == request)


def test_both_sides_have_sglangs_scheduler_and_nothing_is_said_to_be_approximated():
    made = fleet()
    sides = [type(engine.scheduler) for engine in run_of(made).cluster.engines]
    assert sides == [PrefillSide, DecodeSide]
    assert not any("approximated" in remark for pool in made.pools for remark in pool.deployment.remarks)


@pytest.mark.parametrize(("more", "lacked"), [
    ({"kv_transfer_config": {"kv_connector": "nixl"}}, "a KV connector"),
    ({"kv_transfer_config": {"kv_connector": "sglang", "kv_role": "kv_both"}}, "a KV connector"),
    ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2,
                             "acceptance": {"name": "geometric", "rate": 0.5}}}, "a KV connector")])
def test_other_connectors_and_drafts_have_vllms_scheduler_still(more, lacked):
    assert all(lacked in pool.deployment.approximated for pool in fleet(**more).pools)


def test_a_prompt_is_computed_once_the_decode_side_has_memory_for_it_and_a_reserve():
    """Room for the second prompt alone is there at once; the reserves of both are not."""
    log = play(fleet(decode={"max_total_tokens": 1500, "num_reserved_decode_tokens": 400}), (500, 20), (500, 20))
    assert allocated(log, 1) >= when(log, Finished, 0) - 0.01 > when(log, Admitted, 0, DECODE)
    for request in (0, 1):
        assert allocated(log, request) < when(log, Admitted, request, PREFILL)
    loose = play(fleet(decode={"max_total_tokens": 1500, "num_reserved_decode_tokens": 100}), (500, 20), (500, 20))
    assert allocated(loose, 1) < when(loose, Transferred, 0)


def test_the_decode_side_serves_nobody_out_of_turn():
    """The third would find memory at once, which the second lacks."""
    log = play(fleet(decode={"max_total_tokens": 1500, "num_reserved_decode_tokens": 50}),
               (900, 20), (900, 20), (100, 20), apart=1e-3)
    assert allocated(log, 2) >= allocated(log, 1) >= when(log, Finished, 0) - 0.01


def test_a_row_of_the_prefill_side_is_held_until_keys_and_values_have_arrived():
    log = play(fleet(prefill={"max_running_requests": 1}), (1500, 2), (1500, 2))
    assert when(log, Admitted, 1, PREFILL) >= when(log, Released, 0) >= when(log, Transferred, 0)
    assert when(log, Prefilled, 0) > when(log, Transferred, 0)


def test_chunks_leave_while_later_ones_are_computed():
    log = play(fleet(prefill={"chunked_prefill_size": 256}), (1500, 2))
    (sent,) = log.of(Transferred)
    last = max(step.end for step in log.of(Stepped) if step.engine == PREFILL and step.batch.prompts)
    assert sent.began < last < sent.time


def test_who_was_retracted_comes_back_without_computing_again():
    made = fleet(decode={"max_total_tokens": 330, "num_reserved_decode_tokens": 0, "context_length": 300})
    log = play(made, *((50, 100),) * 6)
    retracted = [event for event in log.of(Preempted) if event.engine == DECODE]
    steps = [*log.of(Stepped)]
    computed = [sum(new for step in steps if step.engine == engine for _, new, _ in step.batch.prompts)
                for engine in (PREFILL, DECODE)]
    assert retracted and len([*log.of(Finished)]) == 6
    assert computed == [300, 6 + len(retracted)]  # the decode side: a step each time that one joins
    assert all(step.batch.tokens == step.batch.samples for step in steps if step.engine == DECODE)


def test_the_first_token_comes_with_the_keys_and_values_and_needs_no_step():
    log = play(fleet(decode={"disable_overlap_schedule": True}), (100, 5))
    assert [step.batch.contexts.total for step in log.of(Stepped) if step.engine == DECODE] == [100, 101, 102, 103]


def test_a_prefix_that_the_decode_side_has_is_not_sent_again():
    made = fleet(decode={"disaggregation_decode_enable_radix_cache": True})
    chunks = tuple(("a", number) for number in range(64))
    log = run_of(made, [Request(number, number * 1.0, 1024, 4, chunks, 16) for number in range(2)]).result.log
    assert [event.tokens for event in log.of(Transferred)] == [1024, 0]
    assert [event.cached for event in log.of(Admitted) if event.engine == DECODE] == [1024, 1024]


def test_a_prompt_that_the_reserve_leaves_no_room_for_is_refused():
    (refused,) = play(fleet(decode={"max_total_tokens": 700}), (300, 2)).of(Rejected)
    assert "num_reserved_decode_tokens = 512, is longer than the pool of 7" in refused.reason


@given(settings=st.fixed_dictionaries({}, optional={
    "num_reserved_decode_tokens": st.sampled_from([0, 8, 64]), "max_running_requests": st.integers(1, 6),
    "disable_overlap_schedule": st.just(True), "page_size": st.just(16),
    "disaggregation_decode_enable_radix_cache": st.just(True), "scheduler_recv_interval": st.sampled_from([2, 9]),
    "disaggregation_decode_extra_slots": st.integers(0, 2), "enable_priority_scheduling": st.just(True)}),
    tokens=st.sampled_from([256, 320, 1600]), rate=st.sampled_from([20.0, 400.0]), longest=st.integers(1, 60))
@example(settings={"disable_overlap_schedule": True, "scheduler_recv_interval": 2}, tokens=256, rate=20.0, longest=1)
@example(settings={"disable_overlap_schedule": True, "max_running_requests": 1, "num_reserved_decode_tokens": 0,
                   "enable_priority_scheduling": True}, tokens=256, rate=20.0, longest=17)
@examples(12)
def test_pairs_keep_the_laws_of_runs(settings, tokens, rate, longest):
    load = {"count": 12, "arrivals": {"process": "poisson", "rate": rate},
            "prompt": {"kind": "uniform", "low": 1, "high": 90},
            "output": {"kind": "uniform", "low": 1, "high": longest}}
    own = {"max_total_tokens": tokens, "num_reserved_decode_tokens": 16, **settings}
    run = run_of(fleet({"chunked_prefill_size": 64, **own}, own, load))
    for law in (requests_are_accounted_for, blocks_are_free, joules_are_conserved, attribution_adds_up,
                links_conserve_bytes, it_is_the_same_step_by_step):
        law(run)


@pytest.mark.parametrize("seed", [5, 59])
def test_a_side_is_not_woken_for_a_request_that_has_yet_to_come(seed):
    """A decode side has memory for a request that the prefill side's busier front end has not passed on."""
    own = {"sglang": {"context_length": 2000}}
    load = {"count": 6, "arrivals": {"process": "poisson", "rate": 150.0},
            "prompt": {"kind": "uniform", "low": 5, "high": 120}, "output": {"kind": "uniform", "low": 1, "high": 12}}
    it_is_the_same_step_by_step(run_of(Fleet.of(Scenario.of({
        "engine": "sglang-0.5.8", "host": "sglang", "model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline",
        "seed": seed, "serve": {"kv_transfer_config": {"kv_connector": "sglang"}}, "workload": {"synthetic": load},
        "pools": {"prefill": {"role": "prefill", "serve": own}, "decode": {"role": "decode", "serve": own},
                  "any": {"role": "decode", "serve": own}}}))))
