"""An engine that goes ahead of the clock, from one piece of news to the next, without an event for each step.

What it decides depends on nothing but the requests that have come to it.  So as long as nothing happens elsewhere, it
takes turn after turn by arithmetic; and while its batch only goes on decoding, turns are known before they are taken.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf, nextafter

from attrs import define, field

from ksim.cost.clock import FREE, Clock, Setting
from ksim.flow.batch import Batch, Contexts
from ksim.flow.request import Request
from ksim.flow.timeline import AT_BOOST, Paced
from ksim.runtime.clockwork import Clockwork
from ksim.runtime.engine import Engine, Process
from ksim.runtime.recorder import Recorder
from ksim.scheduling.assignment import Assignment
from ksim.scheduling.encore import Encore

__all__ = ["Skipping"]

#: Turns foreseen at most in one go.
FURTHEST = 512


@define(eq=False, kw_only=True)
class Skipping(Engine):
    """Of one stage.  `clock` is that of its GPUs, where a power limit rules them.

    An engine that is `watched` is looked at by a router, and so must be in the state of each moment that passes.
    """

    clock: Clock | None = None
    watched: bool = False
    _clockwork: Clockwork = field(init=False)
    _encore: Encore = field(init=False)
    _recorder: Recorder = field(init=False)
    _setting: Setting = field(init=False)
    _sent: list[tuple[float, int, Request, Callable[[], object]]] = field(factory=list, init=False)
    _tickets: int = field(default=0, init=False)
    _flying: deque[Assignment | None] = field(factory=deque, init=False)  # None where a turn made no batch

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._clockwork, self._encore = Clockwork(self.host, self.workers), Encore(self.scheduler)
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

    def _receive_sent(self) -> None:
        """Queue what has come when the turn begins."""
        sent, now = self._sent, self._clockwork.now
        while sent and sent[0][0] <= now:
            moment, _, request, done = heappop(sent)
            self.scheduler.add(self._accept(request, moment, done))

    @property
    def _news_at(self) -> float:
        """The first moment at which something may come that the engine does not know of yet."""
        return min(self.env.news, self._sent[0][0] if self._sent else inf)

    def close(self) -> None:
        self._recorder.flush()

    # Turns.

    def _run(self) -> Process:
        env, scheduler, works, flying = self.env, self.scheduler, self._clockwork, self._flying
        depth = scheduler.limits.depth
        while True:
            if env.news < works.now:
                yield env.quiet_before(works.now)
            if self._sent and self._sent[0][0] <= works.now:
                self._receive_sent()
            assignment = scheduler.schedule(works.now)
            if assignment.admitted or assignment.preempted:
                self._note(assignment, works.now)
            batch = assignment.batch() if assignment else None
            if batch:
                load = self.timers[0].load(batch)
                self._send(batch, load, assignment.touched(scheduler.cache.block_tokens) if batch.chunks else 0)
            elif not any(flying):
                flying.clear()
                yield from self._rest(assignment)
                continue
            flying.append(assignment if batch else None)
            if len(flying) >= depth and (oldest := flying.popleft()) is not None:
                taken, delivered = self._land()
                if self.watched and env.news < taken:
                    yield env.quiet_before(taken)
                self._take_in(oldest, delivered)
            if batch and (turns := self._encore.turns()) > 1:
                self._go_on(batch, load.seconds, turns)

    def _send(self, batch: Batch, load: Paced, touched: int) -> None:
        """Send a batch on its way."""
        works, cache, scheduler = self._clockwork, self.scheduler.cache, self.scheduler
        scheduled = works.now
        prepared, launched, start = works.prepare(batch.sequences, touched, load.launch_seconds)
        pace = self.clock.pace(load, start, self._setting) if self.clock else AT_BOOST
        end = works.fly(launched, start, load.paced(pace), batch.samples)
        self._recorder.launch(batch, scheduled, prepared, start, end, len(scheduler.waiting), len(scheduler.running),
                              cache.pool.used, pace)

    def _land(self) -> tuple[float, float]:
        """Wait for the oldest batch; return when its tokens are taken in, and when they have come to the users."""
        taken, delivered = self._clockwork.finish()
        self._recorder.land(taken, delivered)
        self.steps += 1
        return taken, delivered

    def _take_in(self, assignment: Assignment, delivered: float) -> None:
        finished = self.scheduler.update(assignment, self.steps - 1)
        if not finished:
            return
        self._tell(finished, delivered)
        if self.env.coupled or self.watched:  # somebody waits for this moment
            self.env.timeout(delivered - self.env.now).callbacks.append(lambda _: self._end(finished))
        else:
            self._end(finished)

    def _go_on(self, batch: Batch, length: float, turns: int) -> None:
        """Take up to so many *turns* that only go on with *batch*, whose own took the *length* (s), until there is
        news."""
        news, now, offsets, shift = self._news_at, self._clockwork.now, batch.contexts.offsets, batch.contexts.shift
        if news < now:
            return
        if news < inf:  # how many turns there may be until then, if they take about as long as this one
            turns = min(turns, int((news - now) / length) + 2)
        count = len(offsets)
        self._repeat([Batch(Contexts(offsets, shift + turn), (), count, count)
                      for turn in range(1, min(turns, FURTHEST) + 1)], news)
        self._encore.come_back(self.steps - 1)
        if self._flying:
            self._flying[0] = self._encore.latest()

    def _repeat(self, batches: Sequence[Batch], news: float) -> None:
        """Take a turn for each of *batches*, which are of one size and only decode, as long as there is no *news*."""
        works, recorder, clock, pool = self._clockwork, self._recorder, self.clock, self.scheduler.cache.pool
        sequences, waiting, running = batches[0].sequences, len(self.scheduler.waiting), len(self.scheduler.running)
        making, preparing = self.host.core.making(sequences, 0, self.workers), self.host.worker.preparing(sequences)
        for batch, load in zip(batches, self.timers[0].loads(batches), strict=True):
            scheduled = works.now
            if scheduled > news or not self._encore.repeat():
                break
            prepared, launched, start = works.ready(making, preparing, load.launch_seconds)
            pace = clock.pace(load, start, self._setting) if clock else AT_BOOST
            end = works.fly(launched, start, load.paced(pace), sequences)
            recorder.launch(batch, scheduled, prepared, start, end, waiting, running, pool.used, pace)
            recorder.land(*works.finish())
            self.steps += 1

    def _rest(self, assignment: Assignment) -> Process:
        """Sleep until a request comes, unless there is something to do."""
        waiting, running = len(self.scheduler.waiting), len(self.scheduler.running)
        if assignment.preempted:
            return
        if (waiting or running) and not self._sent:
            raise self._stuck(self._clockwork.now, waiting, running)
        if not self._sent:
            self._news = self.env.event()
            yield self._news
        while self.env.news <= (first := self._sent[0][0]):  # one that sets out later may overtake it
            yield self.env.quiet_before(nextafter(first, inf))
        self._clockwork.wake(first)
