"""An engine: one model replica that batches, computes and emits tokens."""

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy
from attrs import define, field

from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.flow.events import Admitted, Emitted, Finished, Preempted, Received, Stepped
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.flow.timeline import Timeline
from ksim.foundation.errors import KsimError
from ksim.runtime.convoy import Convoy, wait
from ksim.runtime.frontend import Frontend
from ksim.runtime.governors import Supervised
from ksim.runtime.horizon import Horizon
from ksim.runtime.stages import Flight, Stages
from ksim.runtime.workers import Workers
from ksim.scheduling.assignment import Assignment
from ksim.scheduling.job import Job
from ksim.scheduling.scheduler import Scheduler
from ksim.specs.host import Host

Process = Generator[simpy.Event, Any, None]


@define(eq=False)
class Turn:
    """What one turn of the engine's loop put in flight; an empty batch never leaves the host."""

    assignment: Assignment
    batch: Batch
    scheduled: float
    waiting: int
    running: int
    blocks: int
    timelines: tuple[Timeline, ...] = ()
    prepared: float = 0.0
    flight: Flight | None = None


@define(eq=False)
class Engine:
    """Runs vLLM's engine-core loop: make a batch, keep up to `depth` of them in flight, take in the oldest.

    Requests that arrive are seen when a turn begins.  The host works beside the
    GPUs, so with two batches in flight its time hides behind theirs.  `timers`
    has one entry per pipeline stage.  If there is one GPU, its worker runs on the
    loop's own thread, which goes on when all is launched; `workers` for several
    are processes of their own.  Engines of a `convoy` take their steps together.  A `governor` says what GPUs keep to.
    """

    number: int
    env: Horizon
    scheduler: Scheduler
    timers: Sequence[StepTimer]
    stages: Stages
    host: Host
    log: Log
    workers: int = 1
    convoy: Convoy | None = None
    governor: Supervised | None = None
    steps: int = field(default=0, init=False)
    outstanding: int = field(default=0, init=False)
    _frontend: Frontend = field(init=False)
    _threads: Workers = field(init=False)
    _coming: int = field(default=0, init=False)  # requests on their way through the front end
    _inbox: list[Job] = field(factory=list, init=False)
    _accepted: int = field(default=0, init=False)
    _latest: float = field(default=-1.0, init=False)  # arrival
    _done: dict[Job, Callable[[], object]] = field(factory=dict, init=False)
    _news: simpy.Event = field(init=False)
    _turns: deque[Turn] = field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        self._news = self.env.event()
        self._frontend = Frontend(self.env, self.host.client)
        self._threads = Workers(self.host.worker)
        self.env.process(self._run())

    def refusal(self, request: Request) -> str:
        """Why this engine can never serve *request*; "" if it can."""
        longest, cache = self.scheduler.limits.max_model_len, self.scheduler.cache
        if request.prompt >= longest:
            return f"its prompt of {request.prompt} tokens leaves no room for output in max_model_len = {longest}"
        tokens = min(request.prompt + request.output, longest) - 1  # the last one is sampled, and not computed on
        if cache.blocks(tokens) > cache.capacity:
            return (f"its cache of {tokens} tokens needs {cache.blocks(tokens)} KV blocks of {cache.block_tokens},"
                    f" and there are {cache.capacity}")
        return ""

    def submit(self, request: Request, done: Callable[[], object], timely: bool = True) -> None:
        """Send *request* on its way to the queue; *done* is called once the user has its last token.

        If that is *timely*, it happens at the very moment, so that it may set off something else.
        """
        self.outstanding += 1
        self._coming += 1
        self._frontend.forward(request, lambda: self._receive(request, done))

    def _receive(self, request: Request, done: Callable[[], object]) -> None:
        """Queue *request* for the next turn."""
        self._coming -= 1
        cache = self.scheduler.cache
        # Requests that are sent at once reach a real engine one after the other, if only just.
        self._latest = max(self.env.now, math.nextafter(self._latest, math.inf))
        job = Job.of(request, self._accepted, cache.block_tokens, holding=cache.holding(request), arrived=self._latest)
        self._accepted += 1
        self._inbox.append(job)
        self._done[job] = done
        self.log.add(Received(self.env.now, request.id, self.number))
        if self.convoy:
            self.convoy.expect(self.number)
        if not self._news.triggered:
            self._news.succeed()

    def prefix_hit(self, request: Request) -> int:
        """How many tokens of *request*'s prompt are in the prefix cache now."""
        cache = self.scheduler.cache
        return cache.lookup(cache.holding(request), request.prompt).tokens

    def _run(self) -> Process:
        """Make batches and take them in, for ever; sleep when there is nothing to do."""
        depth = self.scheduler.limits.depth
        while True:
            self._take_in_arrivals()
            turn = self._make_batch()
            if turn.assignment:
                yield from self._launch(turn)
            elif self.convoy:
                self.convoy.rest(self.number)
            if not turn.assignment and not any(other.flight for other in self._turns):
                self._turns.clear()
                yield from self._sleep(turn)
                continue
            self._turns.append(turn)
            if len(self._turns) >= depth:
                yield from self._finish(self._turns.popleft())

    def _take_in_arrivals(self) -> None:
        for job in self._inbox:
            self.scheduler.add(job)
        self._inbox.clear()

    def _make_batch(self) -> Turn:
        scheduler, now = self.scheduler, self.env.now
        assignment = scheduler.schedule(now)
        for job in assignment.preempted:
            self.log.add(Preempted(now, job.request.id, self.number))
        for grant in assignment.grants:
            if grant.admitted:
                job = grant.job
                self.log.add(Admitted(now, job.request.id, self.number, job.cached, job.known, job.preemptions > 0))
        return Turn(assignment, assignment.batch(), now, len(scheduler.waiting), len(scheduler.running),
                    scheduler.cache.pool.used)

    def _launch(self, turn: Turn) -> Process:
        """Send a batch to the workers, and stay for as long as that keeps the loop from going on."""
        batch, now = turn.batch, self.env.now
        together = (yield from self.convoy.join(self.number, batch.tokens)) if self.convoy else None
        turn.timelines = tuple(timer.timeline(batch, together.brought if together else ()) for timer in self.timers)
        touched = turn.assignment.touched(self.scheduler.cache.block_tokens)
        ready = now + self.host.core.making(batch.sequences, touched, self.workers)
        supplies = self._threads.supply(batch, turn.timelines, ready)
        turn.prepared = supplies[0].prepared
        settings = [self.governor.setting(batch, timeline) for timeline in turn.timelines] if self.governor else ()
        turn.flight = self.stages.launch(turn.timelines, supplies, self._source(turn), settings)
        if self.convoy and together:
            alone = turn.flight.end
            turn.flight = yield from self.convoy.meet(self.number, together, turn.flight)
            turn.timelines = (*turn.timelines[:-1], turn.timelines[-1].followed_by(wait(turn.flight.end - alone)))
        free = ready if self.workers > 1 else supplies[0].launched
        yield self.env.timeout(max(0.0, free - self.env.now))

    def _source(self, turn: Turn) -> Flight | None:
        """The latest batch in flight that *turn* may need tokens of: a job that sampled is not in the next schedules,
        one fewer than there are stages."""
        latest = turn.assignment.number - len(self.timers)
        flights = [other.flight for other in self._turns if other.flight and other.assignment.number <= latest]
        if self.convoy and self.convoy.latest:  # no round begins before the one before has ended
            return max([*flights, self.convoy.latest], key=lambda flight: flight.end)
        return flights[-1] if flights else None

    def _sleep(self, turn: Turn) -> Process:
        """Wait for an arrival, unless there is something to do; work that nobody schedules would wait for ever."""
        if self._inbox or turn.assignment.preempted:
            return
        if (turn.waiting or turn.running) and not self._coming:
            raise self._stuck(self.env.now, turn.waiting, turn.running)
        self._news = self.env.event()
        yield self._news
        yield self.env.timeout(self.host.core.wake)

    def _stuck(self, now: float, waiting: int, running: int) -> KsimError:
        policy, admission = (type(part).__name__ for part in (self.scheduler.policy, self.scheduler.admission))
        return KsimError(f"policy {policy} with admission {admission} schedules nothing at {now:.6f} s, with nothing in"
                         f" flight, {waiting} requests waiting and {running} running")

    def _finish(self, turn: Turn) -> Process:
        """Wait for the oldest batch, and hand out its tokens."""
        if turn.flight is None:
            return
        yield turn.flight.done
        yield self.env.timeout(self.host.core.taking(turn.batch.samples))
        finished, taken, index = self.scheduler.update(turn.assignment, self.steps), self.env.now, self.steps
        self.steps += 1
        self._frontend.deliver(turn.batch.samples, lambda: self._delivered(turn, index, taken, finished))

    def _delivered(self, turn: Turn, index: int, taken: float, finished: Sequence[Job]) -> None:
        """Write down that users have the tokens of a step, some of them their last."""
        flight, now = turn.flight, self.env.now
        assert flight is not None, "only batches that were launched are delivered"
        self.log.add(Stepped(now, self.number, index, turn.scheduled, turn.prepared, flight.start, flight.end, taken,
                             turn.batch, turn.waiting, turn.running, turn.blocks, turn.timelines, flight.paces))
        for job in finished:
            for run in job.emitted:
                self.log.add(Emitted(now, job.request.id, self.number, run.first, run.last, run.every or 1))
            self.log.add(Finished(now, job.request.id, self.number))
            self.outstanding -= 1
            self._done.pop(job)()
