"""Policies that propose what vLLM's order is anyway, and what can be seen of their engines."""

from collections.abc import Iterator, Sequence
from typing import Any

from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL, Waiting, Wish
from ksim.scheduling.policies.orders import Fcfs
from ksim.testing.loop import Loop

#: Long enough for every workload, unless two jobs rob each other for ever, which a policy is free to let them do.
PAUSES = 1000


class Proposing:
    """Proposes what vLLM's order is anyway; with such a policy, each job is looked at in each step."""

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        yield from ((job, ALL) for job in running)
        yield from ((job, ALL) for job in waiting)


class ProposingFcfs(Proposing, Fcfs):
    pass


def seen(engine: Loop) -> dict[str, Any]:
    """All that can be told of an engine from outside, after a schedule or an update."""
    schedule, scheduler = engine.last_schedule, engine.scheduler
    batch = schedule.batch()
    return {
        "entries": [(g.job.number, g.tokens, g.start, g.samples, g.admitted) for g in schedule.all_entries()],
        "batch": (list(batch.contexts), list(batch.chunks), batch.samples, batch.tokens),
        "preempted": [job.number for job in schedule.preempted],
        "finished": [job.number for job in engine.finished],
        "waiting": [job.number for job in scheduler.waiting],
        "running": [job.number for job in scheduler.running],
        "free": scheduler.cache.pool.free,
    }
