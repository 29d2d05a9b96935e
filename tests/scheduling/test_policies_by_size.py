"""Policies that look at how much a request has yet to compute, or at when it should have begun."""

from statistics import fmean
from typing import Any

import pytest

from ksim.flow.request import Request
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.scheduling.job import Job
from ksim.scheduling.policies.orders import EarliestDeadlineFirst, Fcfs, ShortestRemaining
from ksim.scheduling.policies.srpt_predicted import SrptPredicted
from ksim.testing.loop import Loop, loop

#: A burst with a heavy tail: of sixty outputs, six have two thirds of the tokens.
BURST = [200 if number % 10 == 0 else 5 + number % 13 for number in range(60)]


def burst(policy: Any) -> Loop:
    engine = loop(policy=policy, max_num_seqs=4)
    for output in BURST:
        engine.add(8, output=output)
    engine.run()
    return engine


def mean_end(policy: Any) -> float:
    """Turns from the burst to the end of a request."""
    return fmean(job.emitted[-1].last for job in burst(policy).jobs)


def order_of(policy: Any, *requests: Request) -> list[int]:
    """The requests by when they are admitted, if all wait at once."""
    jobs = [Job.of(request, number, 16) for number, request in enumerate(requests)]
    return [job.number for job in sorted(jobs, key=policy.order)]


def test_the_least_work_is_admitted_first():
    engine = loop(policy=ShortestRemaining())
    a, b, c = engine.add(9, output=9), engine.add(12, output=2), engine.add(3, output=11)
    assert list(engine.turn()) == [b, c, a]


def test_who_has_most_left_gives_way():
    engine = loop(policy=ShortestRemaining(), blocks=6, prefix_caching=False)
    a, b = engine.add(8, output=12), engine.add(12, output=3)
    assert list(engine.turn()) == [b, a]
    assert engine.turn() == {b: 1}
    assert engine.last_schedule.preempted == [a]


def test_after_a_burst_with_a_heavy_tail_the_mean_is_far_lower():
    assert mean_end(ShortestRemaining()) < 0.5 * mean_end(Fcfs())


def test_a_prediction_without_error_is_an_oracle():
    assert mean_end(SrptPredicted(error=0.0)) == mean_end(ShortestRemaining())


def test_the_worse_the_prediction_the_less_is_won():
    means = [fmean(mean_end(SrptPredicted(error=error, seed=seed)) for seed in range(5)) for error in (0.0, 0.7, 3.0)]
    assert means == sorted(means)
    assert means[1] < 0.7 * mean_end(Fcfs())


def test_errors_follow_from_the_seed_alone():
    runs = [[job.emitted[0].first for job in burst(SrptPredicted(error=1.0, seed=seed)).jobs] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_one_that_has_passed_its_prediction_counts_as_all_but_done():
    jobs = [Job.of(Request(number, 0.0, 10, 1000), number, 16) for number in range(10)]
    for job in jobs:
        job.num_computed_tokens, job.num_tokens = 508, 509
    left = [SrptPredicted(error=1.0).remaining(job) for job in jobs]
    assert min(left) == 2 and max(left) > 502


def test_the_earliest_deadline_is_admitted_first():
    policy = EarliestDeadlineFirst(ttft=1.0, per_token=0.001)
    early_and_long, later_and_short = Request(0, 0.0, 3000, 1), Request(1, 1.0, 100, 1)
    assert order_of(policy, early_and_long, later_and_short) == [1, 0]
    assert order_of(EarliestDeadlineFirst(ttft=1.0, per_token=0.0), early_and_long, later_and_short) == [0, 1]


def test_priority_scales_the_time_that_a_request_has():
    policy = EarliestDeadlineFirst(ttft=1.0, per_token=0.0, scale=4.0)
    assert [policy.deadline(Job.of(Request(0, 10.0, 5, 5, priority=priority), 0, 16)) for priority in (0, 1, -1)] == [
        11.0, 14.0, 10.25]
    assert order_of(policy, Request(0, 0.0, 5, 5, priority=1), Request(1, 2.0, 5, 5)) == [1, 0]
    assert policy.deadline(Job.of(Request(0, 0.0, 5, 5, priority=10**9), 0, 16)) < float("inf")


def test_the_latest_deadline_gives_way():
    engine = loop(policy=EarliestDeadlineFirst(), blocks=4, prefix_caching=False)
    a, b = engine.add(7, priority=4), engine.add(8)
    assert list(engine.turn()) == [b, a]
    assert engine.turn() == {b: 1}
    assert engine.last_schedule.preempted == [a]


def test_more_deadlines_are_met_than_by_arrival_alone():
    """Every third request is long and has the time that goes with it; the others are held up behind it by arrival."""
    policy = EarliestDeadlineFirst(ttft=25.0, per_token=1.0)

    def late(rules: Any) -> int:
        engine = loop(policy=rules, max_num_seqs=2, max_num_batched_tokens=10)
        for number in range(30):
            engine.add(60 if number % 3 == 0 else 5, output=2)
        engine.run()
        return sum(job.emitted[0].first > policy.deadline(job) for job in engine.jobs)

    assert late(policy) < late(Fcfs()) / 2


def test_options_are_quantities():
    choice = Choice("earliest_deadline_first", {"ttft": "300 ms", "per_token": "0.1 ms"})
    assert plugin("scheduling.policies", choice) == EarliestDeadlineFirst(0.3, 0.0001)
    assert plugin("scheduling.policies", Choice("srpt_predicted", {"error": 0.2, "seed": 3})).error == 0.2


@pytest.mark.parametrize("policy", [ShortestRemaining(), SrptPredicted(error=0.0), EarliestDeadlineFirst()])
def test_of_equals_the_first_to_come_is_first(policy):
    assert order_of(policy, *[Request(number, 0.0, 5, 5) for number in range(3)]) == [0, 1, 2]
