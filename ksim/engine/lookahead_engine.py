"""An engine that goes ahead of the clock, from one piece of news to the next, without an event for each step.

What it decides depends on nothing but the requests that have come to it.  So as long as nothing happens elsewhere, it
takes turn after turn by arithmetic; while its batch only goes on decoding, turns are known before they are taken; and
where nobody who may come changes what it decides, it takes many turns before it asks how long they were.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf, nextafter

from attrs import define, field

from ksim.cost.clock import FREE, Clock, Setting
from ksim.engine.engine import Engine, Process
from ksim.engine.loop_times import LoopTimes
from ksim.engine.recorder import Recorder
from ksim.engine.turns import FURTHEST, Turn, Turns, going_on
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST, ClockScaling, StepSummary
from ksim.flow.request import Request
from ksim.scheduling.job import Job
from ksim.scheduling.schedule import Schedule

__all__ = ["LookaheadEngine"]

#: When a batch was scheduled, prepared, begun and ended, and the pace of its GPUs.
Sent = tuple[float, float, float, float, ClockScaling]


@define(eq=False, kw_only=True)
class LookaheadEngine(Engine):
    """Of one stage.  `clock` is that of its GPUs, where a power limit rules them.

    An engine that is `watched` is looked at by a router, and so must be in the state of each moment that passes.
    """

    clock: Clock | None = None
    watched: bool = False
    _times: LoopTimes = field(init=False)
    _turns: Turns = field(init=False)
    _recorder: Recorder = field(init=False)
    _setting: Setting = field(init=False)
    _sent: list[tuple[float, int, Request, Callable[[], object]]] = field(factory=list, init=False)
    _tickets: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._times, self._turns = LoopTimes(self.host, self.workers), Turns(self.scheduler, self._changes)
        self._recorder = Recorder(self.number, self.timers[0], self.log)
        self._setting = self.governor.fixed if self.governor else FREE

    # Requests.

    def submit(self, request: Request, done: Callable[[], object], timely: bool = True) -> None:
        self.outstanding += 1
        self.env.coupled |= timely
        heappush(self._sent, (self._frontend.reach(request), self._tickets, request, done))
        self._tickets += 1
        if not self._news.triggered:
            self._news.succeed()

    def _receive_sent(self, now: float) -> int:
        """Queue what has come when a turn begins *now*; return how many."""
        sent, received = self._sent, 0
        while sent and sent[0][0] <= now:
            moment, _, request, done = heappop(sent)
            self.scheduler.add(self._accept(request, moment, done))
            received += 1
        return received

    @property
    def _news_at(self) -> float:
        """The first moment at which something may come that the engine does not know of yet."""
        return min(self.env.news, self._sent[0][0] if self._sent else inf)

    def close(self) -> None:
        self._recorder.flush()

    # Turns.

    def _run(self) -> Process:
        env, scheduler, times, turns = self.env, self.scheduler, self._times, self._turns
        in_flight = turns.in_flight
        while True:
            if self._independent_of_arrivals:
                yield from self._take_undated()
                continue
            if env.news < times.now:
                yield env.quiet_before(times.now)
            if self._sent and self._sent[0][0] <= times.now:
                self._receive_sent(times.now)
            schedule = scheduler.schedule(times.now)
            if schedule.admitted or schedule.preempted:
                self._note(self._changes(schedule), times.now)
            batch = schedule.batch() if schedule else None
            if batch:
                load = self.timers[0].summarize(batch)
                self._record(batch, self._send(batch, load, turns.touched(schedule, batch)))
            elif not any(in_flight):
                in_flight.clear()
                yield from self._rest(schedule)
                continue
            in_flight.append(schedule if batch else None)
            if (oldest := turns.oldest()) is not None:
                taken, delivered = times.finish()
                self._recorder.complete(taken, delivered)
                if self.watched and env.news < taken:
                    yield env.quiet_before(taken)
                self._give(turns.take_in(oldest), delivered)
            if batch and (more := turns.forecast.repeats_left()) > 1:
                self._go_on(batch, load.seconds, more)

    def _send(self, batch: Batch, load: StepSummary, touched: int) -> Sent:
        """Send a batch on its way."""
        times = self._times
        scheduled = times.now
        prepared, launched, start = times.prepare(batch.sequences, touched, load.launch_seconds)
        pace = self.clock.pace(load, start, self._setting) if self.clock else AT_BOOST
        return scheduled, prepared, start, times.compute(launched, start, load.seconds_at(pace), batch.samples), pace

    def _record(self, batch: Batch, sent: Sent) -> None:
        scheduler = self.scheduler
        self._recorder.launch(batch, *sent, len(scheduler.waiting), len(scheduler.running), scheduler.cache.pool.used)

    def _give(self, finished: Sequence[Job], delivered: float) -> None:
        """Give users the last tokens of the *finished*."""
        if not finished:
            return
        self._tell(finished, delivered)
        if self.env.coupled or self.watched:  # somebody waits for this moment
            self.env.timeout(max(delivered - self.env.now, 0.0)).callbacks.append(lambda _: self._end(finished))
        else:
            self._end(finished)

    def _go_on(self, batch: Batch, length: float, turns: int) -> None:
        """Take up to so many *turns* that only go on with *batch*, whose own took the *length* (s), until there is
        news."""
        news, now = self._news_at, self._times.now
        if news < now:
            return
        if news < inf:  # how many turns there may be until then, if they take about as long as this one
            turns = min(turns, int((news - now) / length) + 2)
        self._repeat(going_on(batch, min(turns, FURTHEST)), news)
        self._turns.resume()

    def _repeat(self, batches: Sequence[Batch], news: float) -> None:
        """Take a turn for each of *batches*, which are of one size and only decode, as long as there is no *news*."""
        times, recorder, clock, pool = self._times, self._recorder, self.clock, self.scheduler.cache.pool
        sequences, waiting, running = batches[0].sequences, len(self.scheduler.waiting), len(self.scheduler.running)
        making, preparing = self.host.core.making(sequences, 0, self.workers), self.host.worker.preparing(sequences)
        for batch, load in zip(batches, self.timers[0].summarize(batches), strict=True):
            scheduled = times.now
            if scheduled > news or not self._turns.forecast.repeat():
                break
            prepared, launched, start = times.ready(making, preparing, load.launch_seconds)
            pace = clock.pace(load, start, self._setting) if clock else AT_BOOST
            end = times.compute(launched, start, load.seconds_at(pace), sequences)
            recorder.launch(batch, scheduled, prepared, start, end, pace, waiting, running, pool.used)
            recorder.complete(*times.finish())
            self._turns.steps += 1

    # Turns that are the same whatever comes.

    @property
    def _independent_of_arrivals(self) -> bool:
        """Whether the next turn is the same whenever it is, and nobody must know of it in time."""
        env = self.env
        newcomers = bool(self._sent) or env.news < inf
        return not (self.watched or env.coupled) and self._turns.forecast.independent_of_arrivals(newcomers)

    def _take_undated(self) -> Process:
        """Take turns for as long as nothing that comes can change them, and then see when they were."""
        turns, idle = list[Turn](), None
        while self._independent_of_arrivals and len(turns) < FURTHEST and idle is None:
            idle = self._turns.decide(turns)
        yield from self._date(turns)
        if idle is not None:
            yield from self._rest(idle)

    def _date(self, turns: Sequence[Turn]) -> Process:
        """Find out when *turns* were, and write down what they did."""
        env, times, recorder = self.env, self._times, self._recorder
        batches = [turn.batch for turn in turns if turn.batch]
        loads = iter(recorder.foresee(batches, sum(turn.completes for turn in turns)))
        dates = [(times.now, self._send(turn.batch, next(loads), turn.touched) if turn.batch else None,
                  times.finish() if turn.completes else None) for turn in turns]
        if env.news < dates[-1][0]:
            yield env.quiet_before(dates[-1][0])
        come = 0
        for turn, (now, sent, completed) in zip(turns, dates, strict=True):
            if self._sent and self._sent[0][0] <= now:
                come += self._receive_sent(now)
            self._note(turn.changes, now)
            if turn.batch and sent:
                recorder.launch(turn.batch, *sent, turn.waiting + come, turn.running, turn.blocks)
            if completed:
                recorder.complete(*completed)
                self._give(turn.finished, completed[1])

    def _rest(self, schedule: Schedule) -> Process:
        """Sleep until a request comes, unless there is something to do."""
        waiting, running = len(self.scheduler.waiting), len(self.scheduler.running)
        if schedule.preempted:
            return
        if (waiting or running) and not self._sent:
            raise self._stuck(self._times.now, waiting, running)
        if not self._sent:
            self._news = self.env.event()
            yield self._news
        while self.env.news <= (first := self._sent[0][0]):  # one that sets out later may overtake it
            yield self.env.quiet_before(nextafter(first, inf))
        self._times.wake(first)
