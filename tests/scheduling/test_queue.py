"""Who waits, in which order; and that only those are looked at who can be admitted."""

from collections.abc import Iterator

import pytest

from ksim.flow.request import Request
from ksim.scheduling.job import Job
from ksim.scheduling.policies.batching import DecodeFirst
from ksim.scheduling.policies.orders import Fcfs, Priority
from ksim.scheduling.queues import ArrivalQueue, OpenQueue, SortedQueue
from ksim.testing.loop import loop


def jobs(*priorities: int) -> list[Job]:
    return [Job.of(Request(number, 0.0, 5, 5, priority=priority), number, 16)
            for number, priority in enumerate(priorities)]


def by_priority() -> SortedQueue:
    return SortedQueue(lambda job: job.request.priority)


def test_by_arrival_the_first_to_come_is_first_and_who_is_put_back_goes_before():
    a, b, c, d = jobs(0, 0, 0, 0)
    queue = ArrivalQueue()
    for job in (a, b):
        queue.add(job)
    queue.put_back(c)
    queue.put_back(d)
    assert list(queue) == [d, c, a, b]


def test_by_a_key_the_smallest_is_first_and_who_is_put_back_goes_to_its_place():
    a, b, c = jobs(2, 1, 3)
    queue = by_priority()
    for job in (a, c):
        queue.add(job)
    queue.put_back(b)
    assert list(queue) == [b, a, c]


def test_equal_keys_keep_the_order_of_their_coming():
    a, b, c = jobs(1, 1, 1)
    queue = by_priority()
    for job in (c, a, b):
        queue.add(job)
    assert list(queue) == [c, a, b]


@pytest.mark.parametrize("make", [ArrivalQueue, by_priority])
def test_who_is_removed_is_gone(make):
    a, b = jobs(1, 2)
    queue = make()
    queue.add(a)
    queue.add(b)
    queue.remove(a)
    assert (list(queue), len(queue), a in queue, b in queue) == ([b], 1, False, True)


@pytest.mark.parametrize("make", [ArrivalQueue, by_priority])
def test_iterating_is_lazy_and_ends_when_admission_does(make):
    queue = make()
    for job in jobs(*range(5)):
        queue.add(job)
    waiting = OpenQueue(queue)
    looked_at = iter(waiting)
    assert [next(looked_at).number, next(looked_at).number] == [0, 1]
    waiting.admitting = False
    assert list(looked_at) == []
    assert len(waiting) == 5


class Counting(ArrivalQueue):
    """Counts the jobs that were looked at."""

    looked_at = 0

    def __iter__(self) -> Iterator[Job]:
        for job in super().__iter__():
            self.looked_at += 1
            yield job


@pytest.mark.parametrize("policy", [Fcfs(), DecodeFirst()])
@pytest.mark.parametrize("limits", [
    {"max_num_seqs": 4}, {"blocks": 8}, {"max_num_batched_tokens": 5, "max_num_seqs": 5},
    {"async_scheduling": True, "blocks": 8},
])
def test_a_step_looks_at_no_more_waiting_jobs_the_more_there_are(policy, limits):
    """Counted, not timed: ten steps with 20 jobs waiting, and with 2,000."""
    counts = []
    for waiting in (20, 2000):
        engine = loop(policy=policy, **limits)
        queue = engine.scheduler.waiting = Counting()
        for _ in range(waiting):
            engine.add(6, output=7)
        for _ in range(10):
            engine.turn()
        counts.append(queue.looked_at)
    assert counts[0] == counts[1] <= 40


def test_a_key_is_asked_for_once_for_each_time_a_job_comes():
    asked = []

    class Noting(Priority):
        def order(self, job: Job) -> tuple[int, float, int]:
            asked.append(job)
            return super().order(job)

    engine = loop(policy=Noting(), max_num_seqs=1)
    for _ in range(30):
        engine.add(5, output=2)
    engine.run()
    assert asked == engine.jobs
