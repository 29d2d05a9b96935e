"""SGLang's scheduler under random loads: its laws hold, no page is lost, and repeats equal what is computed."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from attrs import evolve
from hypothesis import example, given

from ksim.kv.cache.radix import RadixCache
from ksim.scheduling.engine_loop import Turn
from ksim.scheduling.job import Job, State
from ksim.scheduling.sglang.scheduler import SglangScheduler
from ksim.testing.history import emitted
from ksim.testing.invariants import SGLANG_INVARIANTS, breach
from ksim.testing.loop import Loop
from ksim.testing.strategies import sglang_cases
from ksim.testing.trial import Arrival, Case, Subject
from tests.kv.cache.trees import nodes
from tests.properties import examples

FCFS = Subject("fcfs", SglangScheduler)
#: So many turns are more than any case takes.
AGES = 20_000


def fresh(case: Case) -> Loop:
    return FCFS.engine(**case.settings)


@given(case=sglang_cases())
@example(case=Case({"chunked_prefill_size": 20, "blocks": 1000},  # more decode than a chunk has tokens
                   tuple(Arrival(turn, prompt=1, output=9) for turn in range(5) for _ in range(8))))
@examples(400)
def test_its_laws_hold(case):
    """So nobody starves, admission keeps memory for outputs, and a batch that is full hides the queue."""
    history = FCFS.play(case)
    assert history.error is None
    assert {name: found for name, law in SGLANG_INVARIANTS.items() if (found := breach(history, law))} == {}


@given(case=sglang_cases(aborts=False))
@examples(200)
def test_every_request_gets_exactly_its_tokens_and_gives_all_back(case):
    case = evolve(case, settings=case.settings | {"max_queued_requests": None})
    engine = fresh(case)
    for _ in case.play(engine):
        assert engine.turns < AGES, "somebody starves"
    assert [(job.state, job.sampled) for job in engine.jobs] == [(State.DONE, a.output) for a in case.coming]
    assert sorted(job.number for job in engine.finished) == list(range(len(engine.jobs)))
    pool, page = engine.cache.pool, engine.cache.block_tokens
    assert (pool.used, pool.free) == (0, engine.cache.capacity)
    assert engine.cache.cached_tokens() == pool.evictable * page


# Pages, and the tree of those that are cached.


def pages_of(scheduler: SglangScheduler, job: Job) -> int:
    """Pages that *job* holds beside those of the tree; those of decodes are not counted job by job."""
    tokens = job.num_computed_tokens
    if job.in_decode_set:
        tokens += min(scheduler.batch.launched, job.final) - job.start
    return scheduler.cache.blocks(max(tokens, job.block_table.num_slots)) - (
        job.block_table.published // scheduler.cache.block_tokens)


def path_of(job: Job) -> Iterator[Any]:
    node = job.block_table.node
    while node is not None and node.parent is not None:
        yield node
        node = node.parent


def check_pages(scheduler: SglangScheduler) -> None:
    cache: RadixCache = scheduler.cache
    own = sum(pages_of(scheduler, job) for job in scheduler.holding)
    tree = list(nodes(cache.tree))
    assert cache.capacity == cache.pool.empty + own + sum(node.tokens for node in tree) // cache.block_tokens
    assert cache.evictable_tokens() == sum(node.tokens for node in tree if not node.locks)
    users = Counter(node for job in scheduler.holding for node in path_of(job))
    for node in tree:
        assert node.locks == users[node]
        assert node.start % cache.block_tokens == node.end % cache.block_tokens == 0
        assert node.parent.children[cache.tree.key(node.source, node.start)] is node
    for job in scheduler.holding:
        assert sum(node.tokens for node in path_of(job)) == job.block_table.published


@given(case=sglang_cases())
@examples(200)
def test_no_page_is_lost_and_who_runs_locks_what_it_shares(case):
    engine = fresh(case)
    for _ in case.play(engine):
        check_pages(engine.scheduler)
        assert len(engine.scheduler.holding) <= engine.scheduler.limits.max_running_requests


# Schedules that are known to be just like the latest.


class Repeating(Loop):
    """Repeats the latest schedule where the next one is known to be like it."""

    def begin_turn(self, now: float) -> Turn:
        scheduler = self.scheduler
        if scheduler.repeats_left() > 0 and scheduler.repeat():
            return self.put(scheduler.repeated(), now)
        return super().begin_turn(now)


def rows(case: Case, engine: Loop) -> Iterator[tuple[Any, ...]]:
    """What is decided and kept, at every pause."""
    scheduler, cache = engine.scheduler, engine.cache
    for _ in case.play(engine):
        batch = [(entry.job.number, entry.start, entry.tokens) for entry in engine.last_schedule.all_entries()]
        yield (batch, [job.number for job in scheduler.waiting], [job.number for job in scheduler.batch.jobs],
               scheduler.batch.full, scheduler.ratio.now, cache.free_tokens(), cache.cached_tokens(),
               cache.evictable_tokens(), [job.number for job in engine.finished])


@given(case=sglang_cases())
@examples(400)
def test_repeated_schedules_equal_computed_ones(case):
    repeating = Repeating(fresh(case).scheduler)
    assert list(rows(case, repeating)) == list(rows(case, fresh(case)))


def drive(case: Case, *, ahead: bool) -> list[tuple[list[int], int]]:
    """The steps that gave each request its tokens, and its retractions; *ahead* of the clock where that is known."""
    engine, coming, turn = fresh(case), list(case.coming), 0
    while coming or engine.scheduler.has_requests:
        while coming and coming[0].turn <= turn:
            due = coming.pop(0)
            engine.add(due.prompt, due.output, limit=due.output + due.overrun, priority=due.priority,
                       ignore_eos=due.ignore_eos, chunks=due.chunks(engine.cache.block_tokens, named_outputs=True))
        engine.begin_turn(turn)
        if engine.full:
            engine.take_in_oldest()
        turn += 1
        if ahead:
            turn += skipped(engine, coming[0].turn - turn if coming else AGES)
    return [(emitted(job), job.preemptions) for job in engine.jobs]


def skipped(engine: Loop, most: int) -> int:
    """Take turns that are known, at most so many; return how many were taken."""
    turns, known = 0, min(engine.scheduler.repeats_left(), most)
    while turns < known and engine.repeat_turn():
        turns += 1
    if turns:
        engine.sync()
    return turns


@given(case=sglang_cases(aborts=False))
@examples(400)
def test_turns_ahead_of_the_clock_equal_turns_one_by_one(case):
    assert drive(case, ahead=True) == drive(case, ahead=False)
