"""Replays of SGLang's scheduler: laws of any case, with drafts and with sliding windows, and decodes by hand."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.config import structure
from ksim.validation.sglang_cases import SglangCase, SglangReplay
from tests.properties import examples


def replay(settings: dict[str, Any], requests: list[dict[str, Any]], repeats: bool = True) -> SglangReplay:
    numbered = [{"id": f"r{index}", "arrival_step": 0, **request} for index, request in enumerate(requests)]
    case = structure(SglangCase, {"name": "by_hand_0", "settings": settings, "requests": numbered}, "case")
    return SglangReplay(case, repeats)


EAGLE = {"max_total_num_tokens": 200, "disable_overlap_schedule": True,
         "speculative": {"steps": 3, "topk": 1, "draft_tokens": 4}}
WINDOWS = {"max_total_num_tokens": 900, "swa_tokens": 400, "sliding_window": 16, "disable_overlap_schedule": True}


def test_a_decode_has_slots_for_two_verifications():
    rows = [*replay(EAGLE, [{"prompt": [[1, 10]], "output_len": 9, "accepts": [3]}]).steps()]
    assert [row.get("batch") for row in rows[:3]] == [[[0, 0, 10]], [[0, 10, 18]], [[0, 13, 21]]]


def test_tokens_after_the_last_one_are_dropped():
    run = replay(EAGLE, [{"prompt": [[1, 10]], "output_len": 6, "accepts": [4]}])
    rows = [*run.steps()]
    assert [row["s"] for row in rows if "fin" in row] == [2]
    assert (run.outcomes[0]["tokens"], run.outcomes[0]["why"]) == (9, "length")
    assert rows[-1]["tree"] == [15, 0]  # 16 tokens, each with the next


def test_a_prompt_hits_two_tokens_less_than_it_has():
    run = replay(EAGLE, [{"prompt": [[1, 30]], "output_len": 2}, {"prompt": [[1, 30]], "output_len": 2,
                                                                  "arrival_step": 5}])
    assert [*run.steps()] and run.outcomes[1]["cached"] == 28


def test_a_prompt_waits_for_room_in_the_window_layers():
    run = replay({**WINDOWS, "swa_tokens": 70}, [{"prompt": [[seed, 40]], "output_len": 5} for seed in (1, 2)])
    rows = [*run.steps()]
    assert [row["batch"] for row in rows if row["kind"] == "extend"] == [[[0, 0, 40]], [[1, 0, 40]]]


def test_decodes_free_a_window_when_128_tokens_have_passed_it():
    run = replay(WINDOWS, [{"prompt": [[1, 20]], "output_len": 200}])
    free = [row["free"][1] for row in run.steps()]
    assert free[1] == 400 - 17 - 1  # what the prompt's window has passed is freed with its result
    assert [step for step in range(2, 200) if free[step] > free[step - 1]] == [128]


REQUESTS = st.lists(st.fixed_dictionaries({
    "arrival_step": st.integers(0, 6), "output_len": st.integers(1, 200), "max_tokens": st.integers(200, 220),
    "prompt": st.tuples(st.tuples(st.integers(1, 2), st.integers(1, 60)).map(list),
                        st.tuples(st.integers(3, 9), st.integers(1, 60)).map(list)).map(list),
    "accepts": st.lists(st.integers(1, 4), min_size=1, max_size=3)}), min_size=1, max_size=8)
SETTINGS = st.fixed_dictionaries({
    "max_total_num_tokens": st.sampled_from([512, 800]), "page_size": st.sampled_from([1, 16]),
    "chunked_prefill_size": st.sampled_from([-1, 64]), "enable_mixed_chunk": st.booleans(),
    "disable_overlap_schedule": st.booleans(), "disable_radix_cache": st.booleans(),
    "schedule_conservativeness": st.sampled_from([0.1, 1.0]), "schedule_policy": st.sampled_from(["fcfs", "lpm"])})
KINDS = st.sampled_from([
    {}, {"speculative": {"steps": 3, "topk": 1, "draft_tokens": 4}}, {"sliding_window": 16, "swa_tokens": 512},
    {"sliding_window": 50, "swa_tokens": 320},
    {"sliding_window": 16, "swa_tokens": 512, "speculative": {"steps": 3, "topk": 1, "draft_tokens": 4}}])


@examples(300)
@given(SETTINGS, KINDS, REQUESTS)
def test_all_requests_end_and_all_slots_come_back(settings, kind, requests):
    run = replay({**settings, **kind}, requests)
    last = [*run.steps()][-1]
    assert run.end == "done"
    pools = [settings["max_total_num_tokens"], *([kind["swa_tokens"]] if "swa_tokens" in kind else [])]
    assert [free + evictable for free, evictable in zip(last["free"], last["tree"][::2], strict=True)] == pools
    assert not any(last["tree"][1::2])


@examples(300)
@given(SETTINGS, KINDS, REQUESTS)
def test_repeated_schedules_are_those_that_would_be_made(settings, kind, requests):
    settings = {**settings, **kind}
    assert [*replay(settings, requests).steps()] == [*replay(settings, requests, repeats=False).steps()]
