"""An engine whose steps are SimPy events: it waits for pipeline stages, ranks or other engines.

Its inbox has the requests and aborts that its next turn sees.
"""

from collections import deque
from collections.abc import Callable, Container, Sequence
from functools import lru_cache, partial
from typing import Any

from attrs import define, field

from ksim.cost.energy import FREE, Setting
from ksim.cost.step import Timer
from ksim.engine.collective_flows import CollectiveFlows
from ksim.engine.connected_engine import ConnectorWaits
from ksim.engine.engine import ParentRequest, PendingStep, Process, log_abort, tokens_until
from ksim.engine.loop_times import LoopTimes
from ksim.engine.ranks import (
    DataParallelGroup,
    Dummy,
    InFlightBatch,
    LaunchTimes,
    Round,
    Stages,
    WholeSteps,
    Workers,
    wait,
)
from ksim.engine.stage_recorder import StageRecorder
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST
from ksim.flow.events import KvTransferParams, Preempted, Stepped
from ksim.flow.request import Request
from ksim.scheduling.engine_loop import Turn
from ksim.scheduling.job import Job, Schedule, State

__all__ = ["Inbox", "Sampled", "tokens_of", "EventEngine", "dummy_of"]


#: A job, and how many tokens it got from a step.
Sampled = tuple[Job, int]


@define(eq=False, kw_only=True)
class Inbox(ConnectorWaits):
    """Takes requests in between turns; the engines of a `group` take their steps together.

    A `listener` is told which jobs got how many tokens when users have these.
    """

    group: DataParallelGroup | None = None
    listener: Callable[[Sequence[Sampled]], object] | None = field(default=None, init=False)
    _tickets: int = field(default=0, init=False)
    #: Requests on their way through the front end, when they come, and whose KV they are about, by ticket.
    _sent: dict[int, tuple[float, Request, KvTransferParams | None]] = field(factory=dict, init=False)
    #: Jobs that nobody waits for any more, which the next turn drops.
    _aborted: list[Job] = field(factory=list, init=False)
    #: Steps that are in the log: users have their tokens.
    _logged: int = field(default=0, init=False)

    def submit(self, request: Request, done: Callable[[], object], timely: bool = True,
               params: KvTransferParams | None = None) -> None:
        self._submitted(request)
        self._tickets = ticket = self._tickets + 1
        self._sent[ticket] = (self.env.now, request, params)
        moment = self._frontend.forward(request, lambda: self._receive(ticket, request, done, params),
                                        params is not None and params.tokenized)
        if ticket in self._sent:
            self._sent[ticket] = (moment, request, params)
        if self.connector is not None and params is not None:
            self.connector.expect(params, moment)

    @property
    def _called(self) -> bool:
        return bool(self._inbox or self._aborted)

    @property
    def coming(self) -> list[tuple[float, Request]]:
        """When which requests come that have been sent, and those that no turn has seen."""
        received = [(self.env.now, job.request) for job in self._inbox]
        sent = sorted(self._sent.values(), key=lambda sent: sent[0])
        return received + [(moment, request) for moment, request, _ in sent]

    def _receive(self, ticket: int, request: Request, done: Callable[[], object],
                 params: KvTransferParams | None) -> None:
        """Queue *request*, which has this *ticket*, for the next turn, unless it was aborted on its way."""
        if self._sent.pop(ticket, None) is None:
            return
        self._inbox.append(self._accept(request, self.env.now, done, params))
        if self.group:
            self.group.expect(self.number)
        self._wake()

    def _take_inbox(self) -> None:
        """Queue the requests that have come since the last turn, and drop those that were aborted."""
        for job in self._inbox:
            self.scheduler.add(job)
        self._inbox.clear()
        if self._aborted:
            self._drop_aborted()

    # Aborts.

    def cut_off(self, request: int) -> tuple[int, bool]:
        """Drop *request*, so that another engine may go on with it, or have it anew.

        Return how many tokens its user has from here, and whether it had begun to be computed.
        """
        tokens, jobs = self.tokens_had(request), [job for job in self._done if job.request.id == request]
        begun = any(job.state is State.RUNNING or job.preemptions for job in jobs)
        if any(job.state is State.RUNNING for job in jobs):
            self.log.add(Preempted(self.env.now, request, self.number))
        self.abort(request)
        return tokens, begun

    def tokens_had(self, request: int) -> int:
        decoded = [job for job, told in self._done.items() if job.request.id == request
                   and not (isinstance(told, ParentRequest) and told.at_once)
                   and (job.kv_transfer_params is None or not job.kv_transfer_params.do_remote_decode)]
        return sum(tokens_until(self.scheduler.decodes, job, self._logged) for job in decoded)

    def abort(self, request: int) -> bool:
        """Have the next turn drop all sequences of *request*, as vLLM's engine core does; nobody hears of their ends.

        Return whether any had not ended.
        """
        coming = [ticket for ticket, sent in self._sent.items() if sent[1].id == request]
        jobs = [job for job in self._done if job.request.id == request]
        for ticket in coming:
            _, sent, params = self._sent.pop(ticket)
            self._forget(sent, ticket == coming[-1] and not jobs)
            if params is not None and self.endpoint is not None:
                self.endpoint.abort(params)
        log_abort(self.log, self.number, {job: self._done.pop(job) for job in jobs}, self.scheduler.decodes,
                  self._logged, self.env.now)
        for job in jobs:
            self._forget(job.request, job is jobs[-1])
        self._aborted += jobs
        if jobs or coming:
            self._wake()
        return bool(jobs or coming)

    def _forget(self, request: Request, last: bool) -> None:
        """Count *request*, a sequence that was aborted, as ended; it may be the *last* of its request."""
        self.outstanding -= 1
        if self.observer is not None:
            self.observer.ended(self.env.now, request, last)

    def _drop_aborted(self) -> None:
        for job in self._aborted:
            if job.state is not State.DONE:  # it may have got its last token meanwhile
                self.scheduler.abort(job)
            if job.kv_transfer_params is not None and self.endpoint is not None:
                self.endpoint.abort(job.kv_transfer_params)
        self._aborted.clear()


def tokens_of(turn: Turn, epoch: int, finished: Container[Job]) -> list[Sampled]:
    """The tokens that jobs got from *turn*, which has just been taken in; those *finished* got their last.

    The scheduler's decode set is of this *epoch*: of its members it does not count the tokens one by one.
    """
    schedule, jobs, tokens = turn.schedule, [entry.job for entry in turn.schedule.entries], list[Sampled]()
    if schedule.epoch == epoch:
        tokens = [(job, 1) for job in schedule.decodes if job.state is not State.DONE or job in finished]
    else:
        jobs = [*schedule.decodes, *jobs]
    return tokens + [(job, job.emitted[-1].tokens) for job in jobs
                     if job.emitted and job.emitted[-1].last == turn.index]


@lru_cache
def dummy_of(width: int) -> Batch:
    """What vLLM's dummy step computes (v1/worker/gpu_worker.py, `execute_dummy_batch`): one decode of *width* tokens,
    whose logits nobody asks for."""
    return Batch.of((width, 0), samples=0, prompts=(), width=width)


#: The same in the log: nobody's tokens.
NOBODY = Batch.of()


@define(eq=False, kw_only=True)
class EventEngine(Inbox):
    """Its batches go through `stages`; the engines of a `group` take their steps together.

    Through `collective_flows`, what its steps send between nodes shares links with transfers.
    In a round without a batch of this engine, its GPUs compute a dummy step, which is logged like any other.
    A `recorder` logs many steps at once, of which there is a summary before.
    """

    stages: Stages
    collective_flows: CollectiveFlows | None = None
    recorder: StageRecorder | None = None
    #: Steps that wait for earlier ones to be logged, each with when its tokens were delivered, and taken in.
    _unlogged: dict[int, tuple[PendingStep, float, float]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._threads = Workers(self.host.worker)
        if self.group:
            self.group.enlist(self.number, self._stand_in)

    def last_pass(self, now: float) -> tuple[Batch, float] | None:
        return None if self.recorder is None else self.recorder.last_pass(self.number, now)

    def close(self) -> None:
        """Log what is not in the log yet."""
        if self.recorder is not None:
            self.recorder.flush()

    def _retime(self, timer: Timer) -> None:
        super()._retime(timer)
        if self.recorder is not None:
            self.recorder.timers[self.number] = self.timers

    def _run(self) -> Process:
        while True:
            self._take_inbox()
            if self.connector is not None:
                self.connector.begin_turn(self.env.now)
                if ended := self.connector.ended():
                    self._frontend.deliver(0, partial(self._deliver_finished, ended))
            yield from self._loop.run_turn(self)

    @property
    def now(self) -> float:
        return self.env.now

    @property
    def times(self) -> LoopTimes | None:
        """When its turns begin and end, from the next one on; None where it is not known when batches end."""
        if not isinstance(self.stages, WholeSteps):
            return None
        sent = deque((turn.work.in_flight.end, turn.work.batch.samples) for turn in self._loop.in_flight
                     if turn.work and turn.work.in_flight)
        times = LoopTimes(self.host, self.workers, self._begins, self._threads.free,
                          gpus=sent[-1][0] if sent else 0.0, frontend=self._frontend.delivered,
                          streamed=self._frontend.streamed, in_flight=sent)
        if self.settling is not None and self.settling.work.in_flight:
            times.finish()
        return times

    def launch(self, turn: Turn) -> Process:
        schedule, now = turn.schedule, self.env.now
        self._begins = now
        self._log_changes(self._changes(schedule), now)
        if not turn.empty:
            turn.work = PendingStep(now, schedule.batch(), *self._counts)
            yield from self._send(turn)
            return
        if self.group:
            self.group.rest(self.number)
        if self.connector is not None:
            turn.launched = yield from self._launch_nothing(schedule, now)

    @property
    def _counts(self) -> tuple[int, int, int]:
        """How many jobs wait and run now, and how many KV blocks are used."""
        return len(self.scheduler.waiting), len(self.scheduler.running), self.scheduler.cache.pool.used

    def _send(self, turn: Turn) -> Process:
        """Send a batch to the workers, and wait until the loop can go on."""
        work, schedule = turn.work, turn.schedule
        batch, now = work.batch, self.env.now
        touched = schedule.touched(self.scheduler.cache.block_tokens)
        pace = self.host.pace.at(now)
        ready = now + pace * self.host.core.making(batch.sequences, touched, self.workers)
        if schedule.hurried:
            ready = yield from self._hurry(schedule, ready)
        together = (yield from self.group.join(self.number, batch.tokens)) if self.group else None
        tokens_by_rank = together.tokens_by_rank if together else ()
        work.tokens_by_rank, work.step_costs = tokens_by_rank, self._costs(batch, tokens_by_rank)
        launches = self._threads.launch(batch, work.step_costs, ready, pace)
        work.prepared, turn.launched = launches[0].prepared, launches[-1].launched
        if self.connector is not None:
            self.connector.launch(schedule, work.scheduled, work.prepared, self._computed)
        work.in_flight = self.stages.launch(work.step_costs, launches, self._source(schedule),
                                            self._settings(batch, work.step_costs), batch, tokens_by_rank)
        if self.group and together:
            work.in_flight = yield from self.group.meet(self.number, together, work.in_flight)
        if (flows := self.collective_flows) is not None:
            work.in_flight = flows.track(
                work.in_flight, lambda: flows.traffic(self.timers, batch, tokens_by_rank), together)
            if self.group:
                self.group.latest = work.in_flight
        free = self._begins = ready if self.workers > 1 else launches[0].launched
        yield self.env.timeout(max(0.0, free - self.env.now))

    def _costs(self, batch: Batch, tokens_by_rank: Sequence[int]) -> tuple[Any, ...]:
        """The costs of *batch* to each stage; where steps are logged many at once, what the clock must know of them."""
        if self.recorder is not None:
            return tuple([timer.summarize(batch, tokens_by_rank) for timer in self.timers])
        return tuple([timer.step_cost(batch, tokens_by_rank) for timer in self.timers])

    def _settings(self, batch: Batch, costs: Sequence[Any]) -> Sequence[Setting]:
        """What the GPUs of each stage are set to while they compute *batch*."""
        return [self.governor.setting(batch, cost) for cost in costs] if self.governor else [FREE] * len(costs)

    def wait(self, turn: Turn) -> Process:
        if turn.work:
            yield turn.work.in_flight.done
            yield self.env.timeout(self._pace * self.host.core.taking(turn.work.batch.samples))
        yield from self._take_report(turn)

    def deliver(self, turn: Turn, finished: list[Job]) -> None:
        taken = self.env.now
        self._take_in(turn, finished, taken)
        tokens = tokens_of(turn, self.scheduler.decodes.epoch, finished) if self.listener else ()
        if turn.work:
            self._frontend.deliver(turn.work.batch.samples,
                                   lambda: self._delivered(turn, taken, finished, tokens))
        elif finished:  # their loads have failed
            self._frontend.deliver(0, lambda: self._deliver_finished(finished))

    def sleep(self, turn: Turn) -> Process:
        """Wait for a request, unless there is something to do."""
        waiting, running = len(self.scheduler.waiting), len(self.scheduler.running)
        if turn.schedule.preempted:
            return
        if self._awaits_transfers:
            yield from self._sleep_through_transfers(turn)
            return
        if self._called:
            return
        if (waiting or running) and not self._sent:
            raise self._stuck(self.env.now, waiting, running)
        self._news = self.env.event()
        yield self._news
        yield from self._stay(self._pace * self.host.core.wake)

    def _source(self, schedule: Schedule) -> InFlightBatch | None:
        """The latest batch in flight whose tokens *schedule* may need.

        With n stages, a job that samples is not scheduled again in the next n - 1 schedules.
        """
        latest = schedule.number - len(self.timers)
        batches: list[InFlightBatch] = [turn.work.in_flight for turn in self._loop.in_flight
                                        if turn.work and turn.work.in_flight and turn.schedule.number <= latest]
        if self.group and self.group.latest:  # no round begins before the one before has ended
            return max([*batches, self.group.latest], key=lambda in_flight: in_flight.end)
        return batches[-1] if batches else None

    def _delivered(self, turn: Turn, taken: float, finished: Sequence[Job], tokens: Sequence[Sampled]) -> None:
        """Log that the users have the *tokens* of *turn*, which are the last ones of the *finished* jobs."""
        self._log_step(turn.index, turn.work, self.env.now, taken)
        if self.listener is not None:
            self.listener(tokens)
        self._deliver_finished(finished)

    def _deliver_finished(self, finished: Sequence[Job]) -> None:
        """The users have the last tokens of the *finished* jobs, but of those that were aborted meanwhile."""
        finished = [job for job in finished if job in self._done]
        self._log_finished(finished, self.env.now)
        self._end(finished)

    # Dummy steps.

    def _stand_in(self) -> Dummy:
        """Take part in a round that has closed without a batch of this engine."""
        compute = self._compute_dummy if isinstance(self.stages, WholeSteps) else self._send_dummy
        return partial(compute, self._loop.count_step(), self._counts)

    def _compute_dummy(self, index: int, counts: tuple[int, int, int], together: Round) -> None:
        """Compute one token beside the batches of the others in the round *together*, and wait for the slowest.

        A dummy step never delays the others: every batch is at least as much work.  Engines with the same *counts*
        whose GPUs have the same clocks share it.
        """
        assert isinstance(self.stages, WholeSteps), "ranks that differ compute their own"
        batch, prices = dummy_of(together.dummy), tuple([timer.prices for timer in self.timers])
        if prices not in together.dummy_costs:
            together.dummy_costs[prices] = self._costs(batch, together.tokens_by_rank)
        costs = together.dummy_costs[prices]
        end, scalings = together.start, []
        settings, clocks = self._settings(batch, costs), self.stages.clocks
        for stage, step_cost in enumerate(costs):
            scalings.append(clocks[stage].pace(step_cost, end, settings[stage]) if clocks else AT_BOOST)
            end += step_cost.seconds_at(scalings[-1])
        key = (prices, counts, *((pace.time, pace.energy, pace.power, pace.clock) for pace in scalings))
        if key not in together.idle:
            in_flight = InFlightBatch(together.ended, together.start, together.end, tuple(scalings),
                                      (together.end - end,))
            together.idle[key] = self._dummy(counts, together, costs, in_flight)
        self._log_step(index, together.idle[key], together.end, together.end)

    def _send_dummy(self, index: int, counts: tuple[int, int, int], together: Round) -> None:
        """Send one token through ranks that may differ."""
        now, batch = self.env.now, dummy_of(together.dummy)
        costs = self._costs(batch, together.tokens_by_rank)
        in_flight = self.stages.launch(costs, [LaunchTimes(now, now)] * len(costs), None, self._settings(batch, costs),
                                       batch, together.tokens_by_rank)
        work = self._dummy(counts, together, costs, in_flight)
        in_flight.done.callbacks.append(lambda _: self._log_step(index, work, in_flight.end, in_flight.end))

    def _dummy(self, counts: tuple[int, int, int], together: Round, costs: Sequence[Any],
               in_flight: InFlightBatch) -> PendingStep:
        """A dummy step, which is nobody's in the log."""
        now = self.env.now
        return PendingStep(now, NOBODY, *counts, computed=dummy_of(together.dummy), prepared=now, in_flight=in_flight,
                           tokens_by_rank=together.tokens_by_rank, step_costs=tuple(costs))

    def _log_step(self, index: int, work: PendingStep, time: float, taken: float) -> None:
        """Log step number *index* once all steps before it are: a dummy ends before earlier tokens are delivered."""
        self._unlogged[index] = work, time, taken
        while (ready := self._unlogged.pop(self._logged, None)) is not None:
            if self.recorder is not None:
                self.recorder.add(self.number, *ready)
            else:
                self.log.add(self._stepped(self._logged, *ready))
            self._logged += 1

    def _stepped(self, index: int, work: PendingStep, time: float, taken: float) -> Stepped:
        """The event of step number *index*, with what its ranks waited for others."""
        in_flight = work.in_flight
        assert in_flight is not None, "only batches that were launched end"
        alone = len(work.step_costs) - len(in_flight.waits)
        waiting = (cost.followed_by(wait(max(0.0, seconds)))
                   for cost, seconds in zip(work.step_costs[alone:], in_flight.waits, strict=True))
        step_costs = (*work.step_costs[:alone], *waiting)
        return Stepped(
            time=time, engine=self.number, index=index, scheduled=work.scheduled, prepared=work.prepared,
            start=in_flight.start, end=in_flight.end, taken=taken, batch=work.batch, waiting=work.waiting,
            running=work.running, blocks=work.blocks, step_costs=step_costs, scalings=in_flight.scalings)
