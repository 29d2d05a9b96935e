"""Scheduling policies: who should run next, and who should be preempted.

A policy proposes and the scheduler disposes: it only orders jobs and wishes for
tokens, so it cannot break the token budget or the cache.  To add one, add a
file with an attrs class that has any of these members; what it lacks is as in
vLLM's first come, first served:

    order(job) -> key           the waiting queue's order, smallest first; a job's key must not change while it waits
    victim(running) -> job      who is preempted when the cache is full; `running` is in order of admission
    propose(waiting, running, now) -> wishes
                                (job, most tokens) in order of preference, granted until a limit is met; a waiting
                                job that cannot be admitted ends admission for the step, running ones go on; it is
                                asked in every step, so that nothing is foreseen or skipped where there is one
    queue() -> WaitingQueue     a queue of its own instead of one by `order`, where the order changes while jobs wait
    attach(cache)               called once, before all others, with the engine's cache (ksim.kv.cache), which it
                                may ask (`find_prefix`, `can_allocate`, `pool`) and must not change

Each wish must be for a job that waits or runs, no job may be named twice in a
step, and a victim must be running: ConfigError names a policy that does otherwise.
A `propose` that is a generator goes on when its latest wish has been dealt with,
and can see what became of it (see `granted`).

One from elsewhere is named ``package.module:Class``; nothing need be inherited.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from ksim.scheduling.job import Job, State

Wish = tuple[Job, int]  # a job, and the most tokens it should compute

#: What a policy can have; one that has none of them is a mistake, such as a misspelt name.
POLICY_MEMBERS = ("order", "victim", "propose", "queue")

#: More tokens than any job has: "as many as may be".
ALL = 1 << 60


def granted(job: Job, before: int) -> bool:
    """Whether *job*, whose `step` was *before* when it was proposed, has been given tokens since."""
    return job.state is State.RUNNING and job.step != before


class Waiting(Protocol):
    """The waiting jobs in the queue's order; iterating ends with admission."""

    def __iter__(self) -> Iterator[Job]: ...

    def __len__(self) -> int: ...


class Proposing(Protocol):
    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterable[Wish]: ...
