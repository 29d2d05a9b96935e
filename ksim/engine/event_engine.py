"""An engine that takes every step as SimPy events: where stages, ranks or other engines have to be met on the way."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from attrs import define, field

from ksim.cost.clock import FREE
from ksim.engine.data_parallel_group import DataParallelGroup, Dummy, Round, wait
from ksim.engine.engine import Engine, Process
from ksim.engine.stages import InFlightBatch, Stages
from ksim.engine.workers import Workers
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST
from ksim.flow.events import Stepped
from ksim.flow.request import Request
from ksim.flow.steps import StepCost
from ksim.scheduling.job import Job
from ksim.scheduling.schedule import Schedule

__all__ = ["EventEngine"]

#: What vLLM's dummy step computes (v1/worker/gpu_worker.py, `execute_dummy_batch`): one token, whose logits nobody asks
#: for.
DUMMY = Batch.of((1, 0), samples=0)
#: The same in the log: nobody's tokens.
NOBODY = Batch.of()


@define(eq=False)
class Turn:
    """What one turn of the engine's loop put in flight; an empty batch never leaves the host."""

    schedule: Schedule
    batch: Batch
    scheduled: float
    waiting: int
    running: int
    blocks: int
    timelines: tuple[StepCost, ...] = ()
    prepared: float = 0.0
    in_flight: InFlightBatch | None = None
    index: int = -1


@define(eq=False, kw_only=True)
class EventEngine(Engine):
    """Its batches go through `stages`; the engines of a `group` take their steps together.

    In rounds to which it brings nothing, its GPUs compute a dummy step, which goes into the log like any other.
    """

    stages: Stages
    group: DataParallelGroup | None = None
    _threads: Workers = field(init=False)
    _coming: int = field(default=0, init=False)  # requests on their way through the front end
    _inbox: list[Job] = field(factory=list, init=False)
    _turns: deque[Turn] = field(factory=deque, init=False)
    _steps: int = field(default=0, init=False)  # that have been launched
    _logged: int = field(default=0, init=False)
    _ready: dict[int, Stepped] = field(factory=dict, init=False)  # that wait for earlier ones to be logged

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._threads = Workers(self.host.worker)
        if self.group:
            self.group.enlist(self.number, self._stand_in)

    def submit(self, request: Request, done: Callable[[], object], timely: bool = True) -> None:
        self.outstanding += 1
        self._coming += 1
        self._frontend.forward(request, lambda: self._receive(request, done))

    def close(self) -> None:
        """Do nothing: what happens is written down when it does."""

    def _receive(self, request: Request, done: Callable[[], object]) -> None:
        """Queue *request* for the next turn."""
        self._coming -= 1
        self._inbox.append(self._accept(request, self.env.now, done))
        if self.group:
            self.group.expect(self.number)
        if not self._news.triggered:
            self._news.succeed()

    def _run(self) -> Process:
        depth = self.scheduler.limits.depth
        while True:
            self._take_in_arrivals()
            turn = self._make_batch()
            if turn.schedule:
                yield from self._launch(turn)
            elif self.group:
                self.group.rest(self.number)
            if not turn.schedule and not any(other.in_flight for other in self._turns):
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
        schedule = scheduler.schedule(now)
        self._note(self._changes(schedule), now)
        return Turn(schedule, schedule.batch(), now, len(scheduler.waiting), len(scheduler.running),
                    scheduler.cache.pool.used)

    def _launch(self, turn: Turn) -> Process:
        """Send a batch to the workers, and stay for as long as that keeps the loop from going on."""
        batch, now = turn.batch, self.env.now
        together = (yield from self.group.join(self.number, batch.tokens)) if self.group else None
        turn.index = self._next_index()
        tokens_by_rank = together.tokens_by_rank if together else ()
        turn.timelines = tuple(timer.step_cost(batch, tokens_by_rank) for timer in self.timers)
        touched = turn.schedule.touched(self.scheduler.cache.block_tokens)
        ready = now + self.host.core.making(batch.sequences, touched, self.workers)
        launches = self._threads.launch(batch, turn.timelines, ready)
        turn.prepared = launches[0].prepared
        settings = [self.governor.setting(batch, timeline) for timeline in turn.timelines] if self.governor else ()
        turn.in_flight = self.stages.launch(turn.timelines, launches, self._source(turn), settings)
        if self.group and together:
            alone = turn.in_flight.end
            turn.in_flight = yield from self.group.meet(self.number, together, turn.in_flight)
            turn.timelines = (*turn.timelines[:-1], turn.timelines[-1].followed_by(wait(turn.in_flight.end - alone)))
        free = ready if self.workers > 1 else launches[0].launched
        yield self.env.timeout(max(0.0, free - self.env.now))

    def _next_index(self) -> int:
        self._steps += 1
        return self._steps - 1

    def _stand_in(self) -> Dummy:
        """Take part in a round that has just closed without a batch of this engine."""
        turn = Turn(Schedule(), NOBODY, self.env.now, len(self.scheduler.waiting), len(self.scheduler.running),
                    self.scheduler.cache.pool.used, index=self._next_index())
        return partial(self._compute_dummy, turn)

    def _compute_dummy(self, turn: Turn, together: Round) -> None:
        """Compute one token beside the batches that others brought to *together*, and wait for the slowest.

        A dummy never delays the others: whoever brought a batch has all of a dummy's work and more.
        """
        timelines = [timer.step_cost(DUMMY, together.tokens_by_rank) for timer in self.timers]
        settings = [self.governor.setting(DUMMY, timeline) for timeline in timelines] if self.governor else ()
        end, paces = together.start, []
        for stage, timeline in enumerate(timelines):
            setting = settings[stage] if settings else FREE
            paces.append(self.stages.clocks[stage].pace(timeline, end, setting) if self.stages.clocks else AT_BOOST)
            end += timeline.seconds_at(paces[-1])
        timelines[-1] = timelines[-1].followed_by(wait(max(0.0, together.end - end)))
        self._log(Stepped(together.end, self.number, turn.index, turn.scheduled, turn.scheduled, together.start,
                          together.end, together.end, turn.batch, turn.waiting, turn.running, turn.blocks,
                          tuple(timelines), tuple(paces)))

    def _log(self, step: Stepped) -> None:
        """Write down *step* once all before it are: dummies end before earlier steps' tokens are delivered."""
        self._ready[step.index] = step
        while (ready := self._ready.pop(self._logged, None)) is not None:
            self.log.add(ready)
            self._logged += 1

    def _source(self, turn: Turn) -> InFlightBatch | None:
        """The latest batch in flight that *turn* may need tokens of: a job that sampled is not in the next schedules,
        one fewer than there are stages."""
        latest = turn.schedule.number - len(self.timers)
        batches = [other.in_flight for other in self._turns if other.in_flight and other.schedule.number <= latest]
        if self.group and self.group.latest:  # no round begins before the one before has ended
            return max([*batches, self.group.latest], key=lambda in_flight: in_flight.end)
        return batches[-1] if batches else None

    def _sleep(self, turn: Turn) -> Process:
        """Wait for an arrival, unless there is something to do; work that nobody schedules would wait for ever."""
        if self._inbox or turn.schedule.preempted:
            return
        if (turn.waiting or turn.running) and not self._coming:
            raise self._stuck(self.env.now, turn.waiting, turn.running)
        self._news = self.env.event()
        yield self._news
        yield self.env.timeout(self.host.core.wake)

    def _finish(self, turn: Turn) -> Process:
        """Wait for the oldest batch, and hand out its tokens."""
        if turn.in_flight is None:
            return
        yield turn.in_flight.done
        yield self.env.timeout(self.host.core.taking(turn.batch.samples))
        finished, taken = self.scheduler.update(turn.schedule, turn.index), self.env.now
        self._frontend.deliver(turn.batch.samples, lambda: self._delivered(turn, taken, finished))

    def _delivered(self, turn: Turn, taken: float, finished: Sequence[Job]) -> None:
        """Write down that users have the tokens of a step, some of them their last."""
        in_flight, now = turn.in_flight, self.env.now
        assert in_flight is not None, "only batches that were launched are delivered"
        self._log(Stepped(now, self.number, turn.index, turn.scheduled, turn.prepared, in_flight.start, in_flight.end,
                          taken, turn.batch, turn.waiting, turn.running, turn.blocks, turn.timelines, in_flight.paces))
        self._tell(finished, now)
        self._end(finished)
