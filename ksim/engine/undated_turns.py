"""Turns that are taken before their times are known, as no arrival can change them, and told of once they have times.

A request that comes meanwhile changes nothing but how many wait, so it is counted when somebody looks.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import nan
from typing import Any, NamedTuple

from attrs import define, field

from ksim.engine.engine import Change
from ksim.engine.observer import Observer, Reading, first_tokens
from ksim.flow.batch import Batch, BatchRuns
from ksim.flow.request import Request
from ksim.scheduling.engine_loop import EngineLoop, Foreseeing, Turn
from ksim.scheduling.job import Job, Schedule
from ksim.scheduling.scheduler import Scheduler

__all__ = ["FURTHEST", "Dates", "Facts", "UndatedTurn", "UndatedTurns", "note", "settle", "tell", "tell_turns"]


#: Turns that are foreseen, or priced, at most in one go.
FURTHEST = 512
#: When a turn begins, when a batch that it takes in reaches its users, if it does, and when it has done so.
Dates = tuple[float, float | None, float]


class Facts(NamedTuple):
    """What holds when a turn has taken in an output: requests that have first tokens, counts, and what entered and left
    the cache."""

    firsts: Sequence[Request]
    waiting: int
    running: int
    blocks: int
    tells: Sequence[int]


def note(observer: Observer, scheduler: Scheduler, turn: Turn | None) -> Facts:
    """Note what holds now that *turn* is taken in, or one that repeats a schedule."""
    tells, told = observer.tells, list[int]()
    if tells:
        told = tells[:]
        tells.clear()
    firsts = first_tokens(turn) if turn is not None and observer.answers is not None else ()
    return Facts(firsts, len(scheduler.waiting), len(scheduler.running), scheduler.cache.pool.used, told)


def tell(observer: Observer, facts: Facts, finished: Sequence[Job], dates: Dates) -> None:
    """Tell *facts*, and that jobs have *finished*, of a turn with these *dates*."""
    begun, delivered, taken = dates
    if delivered is not None:
        for request in facts.firsts:
            observer.first_token(delivered, request)
        for job in finished:
            observer.ended(delivered, job.request, over=True)
    if observer.interval is not None:
        observer.read(Reading(taken, facts.waiting, facts.running, facts.blocks, since=begun))
    if facts.tells:
        observer.events.append((taken, facts.tells, ()))


def settle(observer: Observer | None, moments: Sequence[float]) -> None:
    """Count those that have come meanwhile, at *moments*, among those that wait; from now on, say nothing twice."""
    if observer is None:
        return
    observer.silent, come = True, sorted(moments)
    for index, reading in enumerate(observer.readings):
        if reading.since is not None:
            waiting = reading.waiting + bisect_right(come, reading.since)
            observer.readings[index] = reading._replace(waiting=waiting, since=None)


@define(eq=False)
class UndatedTurn:
    """What a turn did: `changes` by its schedule, and the `batch` that it launched, if any, which `touched` KV blocks.

    `waiting` and `running` jobs and used `blocks` are counted after the schedule.  Some jobs are `finished` if the
    turn `completes` the oldest batch.  Of an engine that is observed, `facts` hold after it, and caches tell `opening`.
    """

    changes: Sequence[Change]
    batch: Batch | None
    touched: int
    waiting: int
    running: int
    blocks: int
    completes: bool = False
    finished: Sequence[Job] = ()
    facts: Facts | None = None
    opening: Sequence[int] = ()

    def tell(self, observer: Observer, dates: Dates) -> None:
        """Tell *observer* of the turn, which has these *dates*."""
        if observer.interval == 0:
            observer.read(Reading(dates[0], self.waiting, self.running, self.blocks, since=dates[0]))
        if self.opening:
            observer.events.append((dates[0], self.opening, ()))
        if self.facts is not None:
            tell(observer, self.facts, self.finished, dates)


@define(eq=False)
class UndatedTurns:
    """A port without a clock for the `loop` of an engine: it notes what each turn does, and never waits.

    `changes` lists the events of a schedule.  An `observer` is told later.
    """

    loop: EngineLoop
    forecast: Foreseeing
    changes: Callable[[Schedule], Sequence[Change]]
    observer: Observer | None = None
    now: float = field(default=nan, init=False)
    turns: list[UndatedTurn] = field(factory=list, init=False)
    idle: Turn | None = field(default=None, init=False)  # the turn after which the engine sleeps

    def take(self) -> None:
        """Take a turn, and the turns after it that repeat its schedule."""
        if self.observer is not None:
            self.observer.silent = True
        self.loop.run_turn_at_once(self)
        if self.turns[-1].batch and (more := self.forecast.repeats_left()) > 1:
            self._repeat(min(more, FURTHEST - len(self.turns)))
        if self.observer is not None:
            self.observer.silent = False

    def launch(self, turn: Turn) -> tuple[()]:
        scheduler, schedule = self.loop.scheduler, turn.schedule
        batch = None if turn.empty else schedule.batch()
        touched = schedule.touched(scheduler.cache.block_tokens) if batch and batch.prompts else 0
        self.turns.append(UndatedTurn(self.changes(schedule), batch, touched, len(scheduler.waiting),
                                      len(scheduler.running), scheduler.cache.pool.used))
        if self.observer is not None and turn.empty and self.loop.idle:
            self.turns[-1].opening = note(self.observer, scheduler, None).tells
        return ()

    def wait(self, turn: Turn) -> tuple[()]:
        return ()

    def deliver(self, turn: Turn, finished: list[Job]) -> None:
        self.turns[-1].completes, self.turns[-1].finished = not turn.empty, finished
        if self.observer is not None:
            self.turns[-1].facts = note(self.observer, self.loop.scheduler, turn)

    def sleep(self, turn: Turn) -> tuple[()]:
        self.idle = turn
        return ()

    def _repeat(self, count: int) -> None:
        """Take up to *count* turns that repeat the latest schedule, as long as there are blocks for them."""
        latest, pool = self.turns[-1], self.loop.scheduler.cache.pool
        waiting, running = len(self.loop.scheduler.waiting), len(self.loop.scheduler.running)
        assert latest.batch, "only a batch can be repeated"
        for batch in BatchRuns.after(latest.batch, count):
            if not self.loop.repeat_turn():
                break
            self.turns.append(UndatedTurn((), batch, 0, waiting, running, pool.used, completes=True))
            if self.observer is not None:
                self.turns[-1].facts = note(self.observer, self.loop.scheduler, None)
        self.loop.sync()


def tell_turns(observer: Observer | None, turns: Sequence[UndatedTurn], dates: Sequence[tuple[Any, ...]]) -> None:
    """Tell *observer*, if there is one, what *turns* do: *dates* are when each begins, when it is sent, when what it
    takes in is delivered, if anything is, and when it has taken that in."""
    if observer is not None:
        for turn, (now, _, completed, taken) in zip(turns, dates, strict=True):
            turn.tell(observer, (now, completed[1] if completed else None, taken))
