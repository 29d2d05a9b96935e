"""Turns of an engine whose schedules do not depend on the time: they are taken first, and get their times later."""

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

from attrs import define, field

from ksim.engine.engine import Change
from ksim.engine.observer import Observer, Reading
from ksim.engine.undated_facts import Dates, Facts, note, tell
from ksim.flow.batch import Batch, Contexts
from ksim.scheduling.engine_loop import EngineLoop, Turn
from ksim.scheduling.job import Job
from ksim.scheduling.schedule import Schedule
from ksim.scheduling.schedule_forecast import ScheduleForecast

__all__ = ["FURTHEST", "UndatedTurn", "UndatedTurns", "next_decodes", "tell_turns"]

#: Turns foreseen at most in one go.
FURTHEST = 512


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
    forecast: ScheduleForecast
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
        for batch in next_decodes(latest.batch, count):
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


def next_decodes(batch: Batch, count: int) -> list[Batch]:
    """The *count* batches after *batch*, which only decodes: each has one more token in the cache per sequence."""
    offsets, shift, adapters = batch.contexts.offsets, batch.contexts.shift, batch.adapters
    sequences = len(offsets)
    return [Batch(Contexts(offsets, shift + turn), (), sequences, sequences, adapters=adapters)
            for turn in range(1, count + 1)]
