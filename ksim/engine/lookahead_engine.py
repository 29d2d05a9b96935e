"""An engine that goes ahead of SimPy's clock, up to the next event that may concern it, without an event for each step.

What an engine decides depends only on the requests that have reached it.  While a batch only decodes, its turns are
`Foreseen`: they are priced together, and taken when a request comes, when somebody looks, or when none of them is left.
So what happens elsewhere costs such an engine nothing.

Where no arrival can change what it decides, it takes many turns first and works out their times later: these are
`UndatedTurns`.  What a router may know of them is noted with each turn, and gets the turn's time.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf, nextafter
from typing import ClassVar

import numpy as np
import simpy
from attrs import define, field

from ksim.cost.energy import FREE, Clock, Setting
from ksim.cost.step import Timer
from ksim.engine.engine import Engine, Process
from ksim.engine.loop_times import LoopTimes
from ksim.engine.observer import Observer, Recorder
from ksim.engine.undated_turns import FURTHEST, UndatedTurn, UndatedTurns, settle, tell_turns
from ksim.flow.batch import Batch, BatchRuns, later
from ksim.flow.costs import AT_BOOST, ClockScaling, StepSummary
from ksim.flow.events import KvTransferParams
from ksim.flow.request import Request
from ksim.scheduling.engine_loop import Foreseeing, Turn, forecast_of
from ksim.scheduling.job import Job

__all__ = ["Foreseen", "LookaheadEngine", "PricedTurns", "Sent"]


#: By how much sums of floats may differ that are added up in another order.
ROUNDING = 1e-9


@define(eq=False)
class PricedTurns:
    """Turns that repeat a schedule, of which so many are `taken`: what the clock must know of their batches (`loads`).

    If the GPUs' clock has one `pace` in all of them, they take so many `seconds`.
    """

    loads: StepSummary
    pace: ClockScaling | None
    seconds: Sequence[float]
    launches: Sequence[float]
    taken: int = 0

    @classmethod
    def of(cls, loads: StepSummary, clock: Clock | None, setting: Setting) -> "PricedTurns":
        """The turns with these *loads*, on GPUs with this *clock*, if they have one."""
        pace, launches = clock.even_pace(loads, setting) if clock else AT_BOOST, loads.launch_seconds
        return cls(loads, pace, loads.seconds_at(pace or AT_BOOST).tolist(),
                   launches.tolist() if isinstance(launches, np.ndarray) else [launches] * len(loads))


@define(eq=False)
class Foreseen:
    """Turns that go on with the decodes of `batch`, of which so many are `left`; the next of them may be `priced`.

    GPUs take at least `least` seconds for each.  The latest turns took so many `seconds` each.
    """

    batch: Batch
    left: int
    least: float
    seconds: float
    priced: PricedTurns | None = None

    def earliest_end(self, times: LoopTimes) -> float:
        """When, at the earliest, the turn after them begins, if the next of them begins at *times*."""
        return max(times.now, times.gpus + self.least * (self.left - times.in_flight) * (1 - ROUNDING))

    def until(self, moment: float, now: float) -> int:
        """About how many of them begin by *moment*, if the next does *now*."""
        return self.left if moment == inf else min(self.left, int((moment - now) / self.seconds) + 1)


#: When a batch is scheduled and prepared, when GPUs begin and end it, and how their clock scaled it.
Sent = tuple[float, float, float, float, ClockScaling]


@define(eq=False, kw_only=True)
class LookaheadEngine(Engine):
    """An engine with one pipeline stage.  `clock` is the SM clock of its GPUs, where a power limit applies.

    A router looks at an engine that is `watched`, so its state must be right at every moment of SimPy's clock.
    """

    #: It goes ahead of SimPy's clock.
    ahead: ClassVar[bool] = True
    #: Whether what it foresees holds until a request comes, or only until the next event.
    foresees_beyond_events: ClassVar[bool] = True

    clock: Clock | None = None
    watched: bool = False
    _times: LoopTimes = field(init=False)
    _forecast: Foreseeing = field(init=False)
    _recorder: Recorder = field(init=False)
    _setting: Setting = field(init=False)
    _sent: list[tuple[float, int, Request, Callable[[], object]]] = field(factory=list, init=False)
    _tickets: int = field(default=0, init=False)
    _foreseen: Foreseen | None = field(default=None, init=False)

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
                batch, seconds = turn.work
                self._foresee(batch, seconds, more)
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

    def _foresee(self, batch: Batch, seconds: float, turns: int) -> None:
        """Foresee up to so many *turns* that repeat the schedule of *batch*, which took *seconds*, as long as there are
        blocks for them."""
        if turns := self.scheduler.affords(turns):
            self._foreseen = Foreseen(batch, turns, self.timers[0].least_seconds(batch), seconds)

    def _go_on(self) -> Process:
        """Let the turns that are foreseen pass, until the next of them might take in a request that has come."""
        while self._foreseen is not None:
            moment = min(self._foreseen.earliest_end(self._times), self._sent[0][0] if self._sent else inf)
            if self.env.news < moment:
                self._news = self.env.quiet_before(moment)
                yield self._news
            self.catch_up(self._news_at)
            if self._sent and self._sent[0][0] <= self._times.now:
                self._foreseen = None

    def catch_up(self, now: float) -> None:
        times, foreseen = self._times, self._foreseen
        if foreseen is None or times.now > now:
            return
        while foreseen.left and times.now <= now:
            self._repeat(foreseen, now)
        self._loop.sync()
        if not foreseen.left:
            self._foreseen = None

    def _repeat(self, foreseen: Foreseen, until: float) -> None:
        """Take some of the turns *foreseen* that begin no later than *until*, at least one."""
        scheduler, priced, paces = self.scheduler, self._priced(foreseen, until), list[ClockScaling]()
        batch, begun = foreseen.batch, self._times.now
        times, finished = self._times.repeat(len(scheduler.latest.decodes), priced.launches[priced.taken:],
                                             self._lasting(priced, paces), until)
        blocks = self._repeat_schedules([(time[0], taken) for time, (taken, _) in zip(times, finished, strict=True)])
        waiting, running, count = len(scheduler.waiting), len(scheduler.running), len(times)
        priced.taken += count
        foreseen.left -= count
        foreseen.batch, foreseen.seconds = later(batch, count), (self._times.now - begun) / count
        if priced.pace is not None:
            paces = [priced.pace] * count
            if self.clock:
                self.clock.rest_from(times[-1][2] + priced.seconds[priced.taken - 1])
        launched = [(*time, waiting, running, used) for time, used in zip(times, blocks, strict=True)]
        self._recorder.repeat(batch, launched, paces, finished)

    def _priced(self, foreseen: Foreseen, until: float) -> PricedTurns:
        """Turns *foreseen* that are priced, if none were, about those that begin by *until*."""
        if foreseen.priced is None or foreseen.priced.taken == len(foreseen.priced.seconds):
            count = foreseen.until(until, self._times.now)
            if self.foresees_beyond_events and not self._sent:  # many are priced in little more time than few
                count = min(2 * count + 32, foreseen.left)
            batches = BatchRuns.after(foreseen.batch, min(count, FURTHEST))
            foreseen.priced = PricedTurns.of(self.timers[0].summarize(batches), self.clock, self._setting)
        return foreseen.priced

    def _repeat_schedules(self, times: Sequence[tuple[float, float]]) -> list[int]:
        """Repeat a schedule in turns that begin and end at *times*; return how many blocks are used in each."""
        observer, pool, blocks = self.observer, self.scheduler.cache.pool, list[int]()
        for _, taken in times:
            repeated = self._loop.repeat_turn()
            assert repeated, "no more turns are foreseen than there are blocks for"
            blocks.append(pool.used)
            if observer is not None:
                observer.flush(taken)
        if observer is not None:
            observer.measure_repeats(self.scheduler, times, blocks)
        return blocks

    def _lasting(self, priced: PricedTurns, paces: list[ClockScaling]) -> Callable[[int, float], float]:
        """A function from a turn, counted from the next of those *priced*, and when GPUs begin it, to its seconds;
        where the clock's pace varies, it is added to *paces*."""
        seconds, clock = priced.seconds[priced.taken:], self.clock
        if clock is None or priced.pace is not None:
            return lambda turn, start: seconds[turn]
        loads = [*priced.loads][priced.taken:]

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
