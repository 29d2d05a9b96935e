"""An engine that goes ahead of SimPy's clock, up to the next event that may concern it, without an event for each step.

What an engine decides depends only on the requests that have reached it.  While a batch only decodes, its turns are
`Foreseen`: they are priced together, and taken when a request comes, when somebody looks, or when none of them is left.
So what happens elsewhere costs such an engine nothing.

Where no arrival can change what it decides, it takes many turns first and works out their times later: these are
`UndatedTurns`.  What a router may know of them is noted with each turn, and gets the turn's time.  A request that comes
meanwhile changes nothing but how many wait, so it is counted when somebody looks.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf, nan, nextafter
from typing import Any, ClassVar, NamedTuple

import numpy as np
import simpy
from attrs import define, field

from ksim.cost.energy import FREE, Clock, Setting
from ksim.cost.step import Timer
from ksim.engine.engine import Change, Engine, Process
from ksim.engine.loop_times import LoopTimes
from ksim.engine.observer import Observer, Reading, Recorder, first_tokens
from ksim.flow.batch import Batch, BatchRuns
from ksim.flow.costs import AT_BOOST, ClockScaling, StepSummary
from ksim.flow.events import KvTransferParams
from ksim.flow.request import Request
from ksim.scheduling.engine_loop import EngineLoop, Foreseeing, Turn, forecast_of
from ksim.scheduling.job import Job, Schedule
from ksim.scheduling.scheduler import Scheduler

__all__ = ["Dates", "Facts", "note", "settle", "tell", "FURTHEST", "Foreseen", "UndatedTurn", "UndatedTurns",
           "tell_turns", "LookaheadEngine", "Sent"]


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


#: Turns foreseen at most in one go, and at first: requests that come may change those that are further away.
FURTHEST, NEAREST = 512, 32


@define(eq=False)
class Foreseen:
    """Turns to come that repeat the latest schedule: what the clock must know of their batches, the `loads`.

    If the GPUs' clock has one `pace` in all of them, they take so many `seconds`.  So many of them are `taken`.
    """

    loads: StepSummary
    pace: ClockScaling | None
    seconds: Sequence[float]
    launches: Sequence[float]
    taken: int = 0

    @classmethod
    def of(cls, loads: StepSummary, clock: Clock | None, setting: Setting) -> "Foreseen":
        """The turns with these *loads*, on GPUs with this *clock*, if they have one."""
        pace = clock.even_pace(loads, setting) if clock else AT_BOOST
        launches: Any = loads.launch_seconds
        return cls(loads, pace, loads.seconds_at(pace or AT_BOOST).tolist(),
                   launches.tolist() if isinstance(launches, np.ndarray) else [launches] * len(loads))

    def earliest_end(self, times: LoopTimes) -> float:
        """When, at the earliest, the turn after them begins, if the next of them begins at *times*."""
        end = times.gpus
        for seconds in self.seconds[self.taken:len(self.seconds) - times.in_flight]:
            end += seconds  # one after the other, no later than `LoopTimes` rounds it
        return max(times.now, end)


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


#: When a batch is scheduled and prepared, when GPUs begin and end it, and how their clock scaled it.
Sent = tuple[float, float, float, float, ClockScaling]


@define(eq=False, kw_only=True)
class LookaheadEngine(Engine):
    """An engine with one pipeline stage.  `clock` is the SM clock of its GPUs, where a power limit applies.

    A router looks at an engine that is `watched`, so its state must be right at every moment of SimPy's clock.
    """

    #: It goes ahead of SimPy's clock.
    ahead: ClassVar[bool] = True

    clock: Clock | None = None
    watched: bool = False
    _times: LoopTimes = field(init=False)
    _forecast: Foreseeing = field(init=False)
    _recorder: Recorder = field(init=False)
    _setting: Setting = field(init=False)
    _sent: list[tuple[float, int, Request, Callable[[], object]]] = field(factory=list, init=False)
    _tickets: int = field(default=0, init=False)
    _foreseen: Foreseen | None = field(default=None, init=False)
    _reach: int = field(default=NEAREST, init=False)  # turns to foresee next

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._times, self._forecast = LoopTimes(self.host, self.workers), forecast_of(self.scheduler)
        self._recorder = Recorder(self.number, self.timers[0], self.log)
        self._setting = self.governor.fixed if self.governor else FREE

    def show(self, observer: Observer) -> None:
        super().show(observer)
        observer.plain = self.scheduler.adapters is None
        observer.newcomers = lambda moment: sum(sent[0] <= moment for sent in self._sent)

    def _delivery(self, turn: Turn) -> float:
        return self._times.frontend

    # Requests.

    def submit(self, request: Request, done: Callable[[], object], timely: bool = True,
               params: KvTransferParams | None = None) -> None:
        self._submitted(request)
        self.env.coupled |= timely
        heappush(self._sent, (self._frontend.reach(request), self._tickets, request, done))
        self._tickets += 1
        self._wake()

    @property
    def times(self) -> LoopTimes:
        """When its turns begin and end."""
        return self._times

    @property
    def coming(self) -> list[tuple[float, Request]]:
        """When which requests come that have been sent."""
        return [(moment, request) for moment, _, request, *_ in sorted(self._sent, key=lambda sent: sent[:2])]

    def _receive_sent(self, now: float) -> int:
        """Queue the requests that have come when a turn begins *now*; return how many."""
        sent, received = self._sent, 0
        while sent and sent[0][0] <= now:
            moment, _, request, done = heappop(sent)
            self.scheduler.add(self._accept(request, moment, done))
            received += 1
        return received

    def _retime(self, timer: Timer) -> None:
        super()._retime(timer)
        self._recorder.timer = timer

    @property
    def _news_at(self) -> float:
        """The first moment at which a request or an event may come that the engine has not taken into account."""
        return min(self.env.news, self._sent[0][0] if self._sent else inf)

    def last_pass(self, now: float) -> tuple[Batch, float] | None:
        self.catch_up(now)
        return self._recorder.last_pass(now)

    def close(self) -> None:
        self.catch_up(self.env.now)
        self._recorder.flush()

    # Turns.

    def _run(self) -> Process:
        env, times = self.env, self._times
        while True:
            while self._independent_of_arrivals:
                yield from self._take_undated()
            if env.news < times.now:
                yield env.quiet_before(times.now)
            if self._sent and self._sent[0][0] <= times.now:
                self._receive_sent(times.now)
            turn = yield from self._loop.run_turn(self)
            if turn.work and (more := self._forecast.repeats_left()) > 1:
                self._foresee(turn.work[0], more)
                yield from self._go_on()

    @property
    def now(self) -> float:
        return self._times.now

    def launch(self, turn: Turn) -> Iterable[simpy.Event]:
        schedule = turn.schedule
        if schedule.admitted or schedule.preempted:
            self._log_changes(self._changes(schedule), turn.now)
        if not turn.empty:
            batch = schedule.batch()
            load, cache = self.timers[0].summarize(batch), self.scheduler.cache
            sent = self._send(batch, load, schedule.touched(cache.block_tokens) if batch.prompts else 0)
            self._recorder.launch(batch, *sent, len(self.scheduler.waiting), len(self.scheduler.running),
                                  cache.pool.used)
            turn.work = batch, load.seconds
        return ()

    def wait(self, turn: Turn) -> Iterable[simpy.Event]:
        if turn.empty:
            return ()
        taken, delivered = self._times.finish()
        self._recorder.complete(taken, delivered)
        return (self.env.quiet_before(taken),) if self.watched and self.env.news < taken else ()

    def deliver(self, turn: Turn, finished: list[Job]) -> None:
        self._give(finished, self._times.frontend)

    def _send(self, batch: Batch, load: StepSummary, touched: int) -> Sent:
        """Launch a batch; return its times."""
        times, scheduled = self._times, self._times.now
        prepared, launched, start = times.prepare(batch.sequences, touched, load.launch_seconds)
        pace = self.clock.pace(load, start, self._setting) if self.clock else AT_BOOST
        return scheduled, prepared, start, times.compute(launched, start, load.seconds_at(pace), batch.samples), pace

    def _give(self, finished: Sequence[Job], delivered: float) -> None:
        """Deliver the last tokens of the *finished* jobs to the users."""
        if not finished:
            return
        self._log_finished(finished, delivered)
        if self.env.coupled or self.watched:  # somebody waits for this moment
            self.env.call_at(max(delivered, self.env.now), lambda: self._end(finished))
        else:
            self._end(finished)

    # Turns that repeat a schedule.

    def _foresee(self, batch: Batch, turns: int) -> None:
        """Foresee up to so many *turns* that repeat the schedule of *batch*, for which there are blocks."""
        count = self.scheduler.affords(min(turns, self._reach))
        if count:
            self._foreseen = self._foreseen_after(batch, count)

    def _foreseen_after(self, batch: Batch, turns: int) -> Foreseen:
        return Foreseen.of(self.timers[0].summarize(BatchRuns.after(batch, turns)), self.clock, self._setting)

    def _go_on(self) -> Process:
        """Let the turns that are foreseen pass, until the next of them might take in a request that has come."""
        while (foreseen := self._foreseen) is not None:
            moment = min(foreseen.earliest_end(self._times), self._sent[0][0] if self._sent else inf)
            if self.env.news < moment:
                self._news = self.env.quiet_before(moment)
                yield self._news
            self.catch_up(self._news_at)
            if self._foreseen is None:
                self._reach = min(2 * self._reach, FURTHEST)
            elif self._sent and self._sent[0][0] <= self._times.now:
                self._reach, self._foreseen = max(2 * foreseen.taken, NEAREST), None

    def catch_up(self, now: float) -> None:
        foreseen = self._foreseen
        if foreseen is None or self._times.now > now:
            return
        self._repeat(foreseen, now)
        self._loop.sync()
        if foreseen.taken == len(foreseen.loads):
            self._foreseen = None

    def _repeat(self, foreseen: Foreseen, until: float) -> None:
        """Take those of the turns *foreseen* that begin no later than *until*."""
        scheduler, observer, paces = self.scheduler, self.observer, list[ClockScaling]()
        times, finished = self._times.repeat(len(scheduler.latest.decodes), foreseen.launches[foreseen.taken:],
                                             self._lasting(foreseen, paces), until)
        if not times:
            return
        blocks, pool = list[int](), scheduler.cache.pool
        for taken, _ in finished:
            repeated = self._loop.repeat_turn()
            assert repeated, "no more turns are foreseen than there are blocks for"
            blocks.append(pool.used)
            if observer is not None:
                observer.flush(taken)
        if observer is not None:
            observer.measure_repeats(
                scheduler, [(time[0], taken) for time, (taken, _) in zip(times, finished, strict=True)], blocks)
        waiting, running = len(scheduler.waiting), len(scheduler.running)
        foreseen.taken += len(times)
        if foreseen.pace is not None:
            paces = [foreseen.pace] * len(times)
            if self.clock:
                self.clock.rest_from(times[-1][2] + foreseen.seconds[foreseen.taken - 1])
        self._recorder.repeat([(*time, waiting, running, used) for time, used in zip(times, blocks, strict=True)],
                              paces, finished)

    def _lasting(self, foreseen: Foreseen, paces: list[ClockScaling]) -> Callable[[int, float], float]:
        """A function from a turn, counted from the next of those *foreseen*, and when GPUs begin it, to its seconds;
        where the clock's pace varies, it is added to *paces*."""
        seconds, clock = foreseen.seconds[foreseen.taken:], self.clock
        if clock is None or foreseen.pace is not None:
            return lambda turn, start: seconds[turn]
        loads = [*foreseen.loads][foreseen.taken:]

        def lasting(turn: int, start: float) -> float:
            paces.append(clock.pace(loads[turn], start, self._setting))
            return float(loads[turn].seconds_at(paces[-1]))

        return lasting

    # Turns that no arrival can change.

    @property
    def _independent_of_arrivals(self) -> bool:
        """Whether the next turn is the same whenever it begins, and nobody waits for what it does."""
        if self.watched or self.env.coupled or (self.observer and not self.observer.plain):
            return False
        return self._forecast.independent_of_arrivals(newcomers=bool(self._sent) or self.env.news < inf)

    def _take_undated(self) -> Process:
        """Take turns as long as no arrival can change them, and work out their times afterwards."""
        undated = UndatedTurns(self._loop, self._forecast, self._changes, self.observer)
        while self._independent_of_arrivals and len(undated.turns) < FURTHEST and undated.idle is None:
            undated.take()
        yield from self._date(undated.turns)
        if undated.idle is not None:
            yield from self.sleep(undated.idle)

    def _date(self, turns: Sequence[UndatedTurn]) -> Process:
        """Work out the times of *turns*, and log what they did."""
        env, times, recorder = self.env, self._times, self._recorder
        batches = [turn.batch for turn in turns if turn.batch]
        loads = iter(recorder.foresee(batches, sum(turn.completes for turn in turns)))
        dates = [(times.now, self._send(turn.batch, next(loads), turn.touched) if turn.batch else None,
                  times.finish() if turn.completes else None, times.now) for turn in turns]
        tell_turns(self.observer, turns, dates)  # before anybody looks who chooses meanwhile
        if env.news < dates[-1][0]:
            yield env.quiet_before(dates[-1][0])
        settle(self.observer, [sent[0] for sent in self._sent])
        come = 0
        for turn, (now, sent, completed, taken) in zip(turns, dates, strict=True):
            if self._sent and self._sent[0][0] <= now:
                come += self._receive_sent(now)
            self._log_changes(turn.changes, now)
            if turn.batch and sent:
                recorder.launch(turn.batch, *sent, turn.waiting + come, turn.running, turn.blocks)
            if completed:
                recorder.complete(*completed)
            self._give(turn.finished, completed[1] if completed else taken)
        if self.observer is not None:
            self.observer.silent = False

    def sleep(self, turn: Turn) -> Process:
        """Wait for a request, unless there is something to do."""
        waiting, running = len(self.scheduler.waiting), len(self.scheduler.running)
        if turn.schedule.preempted:
            return
        if (waiting or running) and not self._sent:
            raise self._stuck(self._times.now, waiting, running)
        if not self._sent:
            self._news = self.env.event()
            yield self._news
        while self.env.news <= (first := self._sent[0][0]):  # one that sets out later may overtake it
            yield self.env.quiet_before(nextafter(first, inf))
        self._times.wake(first)
