"""Either side of a disaggregated pair of SGLang's: who waits for whom, what is sent, and when memory comes free."""

from typing import Any

from ksim.flow.request import Request
from ksim.kv.cache.radix import RadixCache
from ksim.scheduling.job import Job, State
from ksim.scheduling.policies.orders import Fcfs
from ksim.scheduling.sglang.limits import SglangLimits
from ksim.scheduling.sglang.split import DecodeSide, PrefillSide


def limits(**settings: Any) -> SglangLimits:
    return SglangLimits(**{"max_running_requests": 2, "context_length": 1000, "disable_overlap_schedule": True,
                           "num_reserved_decode_tokens": 8, **settings})


def come(side: PrefillSide | DecodeSide, number: int, prompt: int, output: int = 4) -> Job:
    job = side.job(Request(number, 0.0, prompt, output), number, 0.0)
    side.add(job)
    return job


def turn(side: PrefillSide | DecodeSide) -> list[Job]:
    schedule = side.schedule(0.0)
    side.update(schedule, side.steps)
    return [entry.job for entry in schedule.all_entries()]


# The side that prefills.


def test_a_prompt_waits_until_both_sides_have_met():
    side = PrefillSide(limits(), Fcfs(), RadixCache(100))
    first, second = come(side, 0, 10), come(side, 1, 10)
    side.bootstrapped(second)
    assert turn(side) == [second]
    assert side.bootstrapping == [first]


def test_each_chunk_may_be_sent_in_the_turn_after_and_the_last_one_with_its_result():
    sent = []
    side = PrefillSide(limits(chunked_prefill_size=16), Fcfs(), RadixCache(100),
                       send=lambda job, tokens: sent.append((side.steps, tokens)))
    job = come(side, 0, 40)
    side.bootstrapped(job)
    while turn(side):
        pass
    assert sent == [(2, 16), (3, 32), (3, 40)]


def test_memory_is_held_until_the_transfer_has_ended_and_the_tree_keeps_it():
    side = PrefillSide(limits(), Fcfs(), RadixCache(100))
    jobs = [come(side, number, 10) for number in range(3)]
    for job in jobs:
        side.bootstrapped(job)
    assert turn(side) == jobs[:2] == side.inflight
    assert turn(side) == []  # no row is free
    side.transferred(jobs[0])
    assert jobs[0].state is State.DONE
    assert side.cache.evictable_tokens() == 10
    assert turn(side) == jobs[2:]


def test_a_request_without_a_buffer_goes_on_bootstrapping():
    side = PrefillSide(limits(), Fcfs(), RadixCache(100))
    jobs = [come(side, number, 10) for number in range(6)]
    for job in jobs:
        side.bootstrapped(job)
    turn(side)
    assert side.bootstrapping == jobs[4:]


# The side that decodes.


def test_a_request_gets_memory_before_its_keys_and_values_come_and_decodes_in_the_turn_when_they_have():
    loads = []
    side = DecodeSide(limits(), Fcfs(), RadixCache(100, prefix_caching=False), begin=loads.append)
    job = come(side, 0, 10)
    assert turn(side) == loads == []
    side.bootstrapped(job)
    assert turn(side) == []
    assert [(load.job, load.start, load.tokens) for load in loads] == [(job, 0, 10)]
    assert side.cache.free_tokens() == 90
    side.transferred(job)
    assert turn(side) == [job]
    assert side.batch.sampled(job) == 2  # the first has come with them


def test_no_memory_is_given_that_the_reserve_of_others_needs():
    side = DecodeSide(limits(), Fcfs(), RadixCache(40, prefix_caching=False))
    first, second = come(side, 0, 12), come(side, 1, 13)
    side.bootstrapped(second)
    side.bootstrapped(first)
    turn(side)
    assert (side.receiving, side.arriving) == ([first], [second])  # 40 - 12 - 8 < 13 + 8


def test_who_was_retracted_comes_back_before_others_get_memory():
    side = DecodeSide(limits(num_reserved_decode_tokens=0), Fcfs(), RadixCache(28, prefix_caching=False))
    first, second = come(side, 0, 10, output=8), come(side, 1, 10, output=8)
    for job in (first, second):
        side.bootstrapped(job)
    turn(side)
    for job in (first, second):
        side.transferred(job)
    assert [len(turn(side)) for _ in range(4)] == [2, 2, 2, 2]
    third = come(side, 2, 1, output=1)
    side.bootstrapped(third)
    while first.state is State.RUNNING:
        assert turn(side) == [first]
        assert (side.set_aside, side.arriving) == ([second], [third])
    assert turn(side) == [second]
    assert side.receiving == [third]


def test_who_comes_is_seen_at_the_latest_after_so_many_decodes():
    side = DecodeSide(limits(scheduler_recv_interval=3), Fcfs(), RadixCache(100, prefix_caching=False))
    first = come(side, 0, 10, output=12)
    side.bootstrapped(first)
    turn(side)
    side.transferred(first)
    assert turn(side) == [first]
    second = come(side, 1, 10)
    seen = []
    for _ in range(4):
        assert turn(side) == [first]
        seen.append(second in side.arriving)
    assert seen == [False, False, True, True]


def test_who_joins_and_is_retracted_in_the_same_turn_was_never_there():
    side = DecodeSide(limits(num_reserved_decode_tokens=0), Fcfs(), RadixCache(24, prefix_caching=False))
    first, second = come(side, 0, 10, output=12), come(side, 1, 10, output=3)
    for job in (first, second):
        side.bootstrapped(job)
    turn(side)
    side.transferred(first)
    for _ in range(4):
        assert turn(side) == [first]
    side.transferred(second)
    schedule = side.schedule(0.0)
    assert list(schedule.decodes) == [first]
    assert (schedule.admitted, schedule.preempted, side.set_aside, second.preemptions) == ([], [], [second], 0)
