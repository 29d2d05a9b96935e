"""What holds of every schedule, whatever the policy: limits are kept, and blocks are accounted for."""

from collections import Counter
from typing import Any

from ksim.foundation import catalog
from ksim.testing.loop import Loop

#: Turns that no workload here can need, however often it has to start over.
AGES = 5000


def policy(name: str) -> Any:
    return catalog.find("scheduling.policies", name)()


def check_batch(engine: Loop) -> None:
    limits, entries = engine.scheduler.limits, engine.last_schedule.all_entries()
    tokens = Counter({entry.job: entry.tokens for entry in entries})
    assert len(tokens) == len(entries), "a job is in the batch twice"
    assert min(tokens.values(), default=1) > 0
    assert tokens.total() <= limits.max_num_batched_tokens
    assert len(engine.scheduler.running) <= limits.active
    assert not tokens.keys() & set(engine.last_schedule.preempted)


def check_blocks(engine: Loop) -> None:
    """Each block has the users that hold it, and the others are free; who waits holds none."""
    scheduler, pool = engine.scheduler, engine.cache.pool
    users = Counter(block for job in scheduler.running for block in job.block_table.blocks)
    assert [users[block] for block in range(pool.capacity)] == pool.ref_counts
    assert len(users) == pool.used
    assert not any(job.block_table.blocks for job in scheduler.waiting)
