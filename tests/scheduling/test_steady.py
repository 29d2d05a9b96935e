"""Jobs that decode are not counted step by step: nobody can tell from the schedules."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given, settings

from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL, Waiting, Wish
from ksim.scheduling.policies.fcfs import Fcfs
from ksim.scheduling.policies.priority import Priority
from tests.scheduling.loop import Loop, loop
from tests.scheduling.workloads import workloads

#: Long enough for every workload, unless two jobs rob each other for ever, which a policy is free to let them do.
PAUSES = 1000


@frozen
class FewestSampled:
    """Its victim depends on what is counted anew in every step."""

    def order(self, job: Job) -> tuple[int, int]:
        return job.known, job.number

    def victim(self, running: Sequence[Job]) -> Job:
        return min(running, key=lambda job: (job.sampled, job.backlog, job.computed, -job.number))


class Proposing:
    """Proposes what vLLM's order is anyway; with such a policy, each job is looked at in each step."""

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        yield from ((job, ALL) for job in running)
        yield from ((job, ALL) for job in waiting)


class ProposingFcfs(Proposing, Fcfs):
    pass


class ProposingPriority(Proposing, Priority):
    pass


class ProposingFewestSampled(Proposing, FewestSampled):
    pass


def seen(engine: Loop) -> dict[str, Any]:
    """All that can be told of an engine from outside, after a schedule or an update."""
    assignment, scheduler = engine.assignment, engine.scheduler
    batch = assignment.batch()
    return {
        "grants": [(g.job.number, g.tokens, g.start, g.samples, g.admitted) for g in assignment.all_grants()],
        "batch": (list(batch.contexts), list(batch.chunks), batch.samples, batch.tokens),
        "preempted": [job.number for job in assignment.preempted],
        "finished": [job.number for job in engine.finished],
        "waiting": [job.number for job in scheduler.waiting],
        "running": [(job.number, job.holding.blocks) for job in scheduler.running],
        "free": scheduler.cache.pool.free,
    }


def emitted(job: Job) -> list[int]:
    """The turns from which its tokens came."""
    return [turn for run in job.emitted for turn in range(run.first, run.last + 1, run.every or 1)]


@pytest.mark.parametrize(("policy", "proposing"), [
    (Fcfs(), ProposingFcfs()), (Priority(), ProposingPriority()), (FewestSampled(), ProposingFewestSampled())])
@given(workload=workloads())
@settings(max_examples=500, deadline=None)
def test_schedules_are_those_of_counting_every_job_in_every_step(policy, proposing, workload):
    short = long = loop()
    for short, long in islice(zip(workload.play(policy), workload.play(proposing), strict=True), PAUSES):
        assert seen(short) == seen(long)
    for one, other in zip(short.jobs, long.jobs, strict=True):
        assert emitted(one) == emitted(other)
        assert (one.known, one.preemptions, one.cached) == (other.known, other.preemptions, other.cached)
