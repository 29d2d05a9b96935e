"""An engine that goes ahead of SimPy's clock, and sends and takes KV, so that its turns concern other engines.

`ConnectorWaits` is how an engine whose steps are SimPy events waits for what its KV connector has under way.
"""

from collections.abc import Callable, Generator, Sequence
from heapq import heappop, heappush
from math import inf, nan, nextafter
from typing import Any, ClassVar

import simpy
from attrs import define, field

from ksim.engine.engine import Engine, Process
from ksim.engine.lookahead_engine import LookaheadEngine
from ksim.engine.loop_times import LoopTimes
from ksim.engine.ranks import Workers
from ksim.flow.batch import Batch
from ksim.flow.events import KvTransferParams
from ksim.flow.request import Request
from ksim.kv.transfer.endpoint import ConnectorWorker
from ksim.scheduling.engine_loop import Turn
from ksim.scheduling.job import Job, Schedule

__all__ = ["ConnectedEngine", "ConnectorWaits"]


#: A process that returns when something was or will be.
Until = Generator[simpy.Event, Any, float]


@define(eq=False, kw_only=True)
class ConnectorWaits(Engine):
    """Its requests that have come wait in an inbox; its workers' threads launch its steps."""

    _threads: Workers = field(init=False)
    _begins: float = field(default=0.0, init=False)  # when the loop can go on, as far as is known
    _inbox: list[Job] = field(factory=list, init=False)

    @property
    def _pace(self) -> float:
        """How many times as long as stated the host takes for what it begins now."""
        return self.host.pace.at(self.env.now)

    @property
    def _called(self) -> bool:
        """Whether there is something in the inbox for the next turn."""
        return bool(self._inbox)

    def _launch_nothing(self, schedule: Schedule, now: float) -> Until:
        """Tell the workers of a schedule without a batch; return when they have it."""
        assert self.connector is not None, "only workers that copy are told"
        making = self._pace * self.host.core.making(0, 0, self.workers)
        if schedule.hurried:
            yield from self._hurry(schedule, now + making)
            making = max(0.0, now + making - self.env.now)
        yield from self._stay(making)
        self.connector.launch(schedule, now, self.env.now, self._computed)
        return self.env.now

    def _hurry(self, schedule: Schedule, ready: float) -> Until:
        """Wait for the copies that must end before the batch of *schedule* runs; return when it can, or *ready*."""
        assert self.connector is not None, "only connectors copy"
        if ended := self.connector.hurry(schedule, max(ready, self._threads.free), self._computed):
            yield ended
        return max(ready, self.env.now if ended else 0.0)

    def _stay(self, seconds: float) -> Process:
        """Stay for so many *seconds*; then the loop can go on."""
        self._begins = self.env.now + seconds
        yield self.env.timeout(seconds)

    @property
    def _computed(self) -> simpy.Event | None:
        """What fires when the GPUs have computed the latest batch that was sent; None if they have."""
        sent = [turn.work.in_flight for turn in self._loop.in_flight if turn.work and turn.work.in_flight]
        return None if not sent or sent[-1].done.processed else sent[-1].done

    def _take_report(self, turn: Turn) -> Process:
        """Give *turn* what the workers report with it."""
        if self.connector is not None and self.scheduler.transfers_pending:
            yield self.env.quiet_before(nextafter(turn.launched, inf))
            turn.output = self.connector.report(turn.launched)

    def _sleep_through_transfers(self, turn: Turn) -> Process:
        """Wait for a request, or for the end of a transfer, which is reported with *turn*."""
        env, connector, slept = self.env, self.connector, not self._called
        assert connector is not None, "only an engine with a connector waits for transfers"
        while not self._called and connector.due > env.now:
            self._news = env.event()
            yield self._news
        yield env.quiet_before(nextafter(env.now, inf))  # more may end at this moment
        if connector.due > env.now:
            yield from self._stay(self._pace * self.host.core.wake if slept else 0.0)
            return
        turn.output = connector.report(env.now)
        yield from self._stay(self._polling)


NOTHING = Batch.of()
#: When a request comes, its number, the request, what its end causes, whether at that moment, and its parameters.
Sending = tuple[float, int, Request, Callable[[], object], bool, KvTransferParams | None]


@define(eq=False, kw_only=True)
class ConnectedEngine(LookaheadEngine):
    """Goes ahead up to the next event, and up to what other engines may cause, which each of them promises.

    Schedules are not repeated while a transfer is under way, as its end may change them.
    """

    foresees_beyond_events: ClassVar[bool] = False

    connector: ConnectorWorker
    _sent: list[Sending] = field(factory=list, init=False)  # type: ignore[assignment]
    _concerning: set[Job] = field(factory=set, init=False)  # jobs whose end concerns others
    _pausing: float = field(default=inf, init=False)  # until when it waits, if it does

    # Requests.

    def submit(self, request: Request, done: Callable[[], object], timely: bool = True,
               params: KvTransferParams | None = None) -> None:
        self._submitted(request)
        moment = self._frontend.reach(request, params is not None and params.tokenized)
        heappush(self._sent, (moment, self._tickets, request, done, timely, params))
        self._tickets += 1
        if params is not None:
            self.connector.expect(params, moment)
        if self._pausing < inf:  # the request may concern others sooner than was promised
            promises = self.env.promises
            promises[self.number] = min(promises[self.number], max(self._pausing, moment))
        self._wake()

    def _receive_sent(self, now: float) -> int:
        received = 0
        while self._sent and self._sent[0][0] <= now:
            moment, _, request, done, timely, params = heappop(self._sent)
            job = self._accept(request, moment, done, params)
            if timely or (params and params.do_remote_decode):
                self._concerning.add(job)
            self.scheduler.add(job)
            received += 1
        return received

    # Turns.

    @property
    def times(self) -> LoopTimes:
        """When its turns begin and end.

        A batch that has been sent, and is taken in before the next turn, is already taken in: the workers' report on it
        may still be awaited.
        """
        batches = sum(turn.work is not None for turn in self._loop.in_flight)
        if self.settling is None or self.settling.work is None or self._times.in_flight < batches:
            return self._times
        times = self._times.copy()
        times.finish()
        return times

    def _run(self) -> Process:
        times = self._times
        while True:
            if self._horizon < times.now:
                yield from self._pause(times.now)
            self._receive_sent(times.now)
            self.connector.begin_turn(times.now)
            if ended := self.connector.ended():
                times.frontend = max(times.frontend, times.now + self.host.client.deliver)
                self._give(ended, times.frontend)
            turn = yield from self._loop.run_turn(self)
            if turn.work and (more := self._repeats_left(turn)) > 1:
                batch, seconds = turn.work
                self._foresee(batch, seconds, more)
                self.catch_up(self._news_at)
                self._foreseen = None
                for repeated in self._loop.in_flight:  # the latest of them
                    repeated.launched = times.worker

    def _repeats_left(self, turn: Turn) -> int:
        """How many more turns are just like *turn*, if there is no news.

        The engine does not know while a transfer is under way.  Nor does it once anything has happened since *turn*
        began, where another engine may have made room or stored what its requests wait for.
        """
        if self._awaits_transfers or (self.connector.waits_for_peers and self.env.now >= turn.now):
            return 0
        return self._forecast.repeats_left()

    def launch(self, turn: Turn) -> Process:
        times = self._times
        computed, hurried = times.gpus, 0.0
        if turn.schedule.hurried:
            hurried = yield from self._hurry(turn)
        super().launch(turn)
        if turn.empty:
            making = self.host.pace.at(times.now) * self.host.core.making(0, 0, self.workers)
            times.now = max(times.now + making, hurried)
            turn.launched = prepared = times.now
        else:
            times.now = max(times.now, hurried)
            turn.launched, prepared = times.worker, self._recorder.prepared
        self.connector.launch(turn.schedule, turn.now, prepared, computed)

    def _hurry(self, turn: Turn) -> Until:
        """Let the worker wait for the copies that must end before the batch of *turn* runs; return when they have."""
        times, schedule = self._times, turn.schedule
        batch, block = schedule.batch() if not turn.empty else NOTHING, self.scheduler.cache.block_tokens
        moment = max(times.worker, times.now + self.host.pace.at(times.now) * self.host.core.making(
            batch.sequences, schedule.touched(block) if batch.prompts else 0, self.workers))
        if ended := self.connector.hurry(schedule, moment, times.gpus):
            yield ended
            times.worker = max(times.worker, self.env.now)
        return times.worker if ended else 0.0

    def wait(self, turn: Turn) -> Process:
        if self.scheduler.transfers_pending:
            if self.env.news <= turn.launched:
                yield from self._pause(nextafter(turn.launched, inf))
            turn.output = self.connector.report(turn.launched)
        if turn.empty:
            return
        taken, delivered = self._times.finish()
        self._recorder.complete(taken, delivered)
        yield from self._pause_if_watched(taken, turn.output is not None and self.connector.waits_for_peers)

    def deliver(self, turn: Turn, finished: list[Job]) -> None:
        times = self._times
        self._take_in(turn, finished, times.now)
        if turn.empty:
            times.frontend = max(times.frontend, times.now + self.host.client.deliver)
        super().deliver(turn, finished)

    def _give(self, finished: Sequence[Job], delivered: float) -> None:
        if not finished:
            return
        self._log_finished(finished, delivered)
        for job in finished:
            if job.kv_transfer_params is not None:
                job.kv_transfer_params.transfer.answered = delivered
        if self.watched or not self._concerning.isdisjoint(finished):  # somebody waits for this moment
            self._concerning.difference_update(finished)
            self.env.call_at(max(delivered, self.env.now), lambda: self._end(finished))
        else:
            self._end(finished)

    # Waiting.

    @property
    def _horizon(self) -> float:
        """The first moment at which something may happen that concerns this engine.

        If none of its transfers is under way, and nobody has to let its requests begin, that is only a request: one
        that a user sends, or one that another engine has prefilled.
        """
        env = self.env
        if self.watched or env.next_request == -inf or self._awaits_transfers or self.connector.waits_for_peers:
            return env.news
        first = env.next_request
        for transfer in self.connector.expected:
            answered = transfer.answered
            if answered == inf and (answered := env.promises.get(transfer.source.number, inf)) == inf:
                return env.news
            first = min(first, answered)
        return first

    @property
    def _news_at(self) -> float:
        return min(self._horizon, self._sent[0][0] if self._sent else inf)

    def _pause(self, moment: float, news: simpy.Event | None = None) -> Process:
        """Wait until no event is left before *moment*, or for *news*.

        Until then, promise others what this engine does not do.
        """
        quiet = self.env.quiet_before(moment)
        self._pausing = moment
        self.env.promises[self.number] = self._next_effect()
        yield quiet if news is None else quiet | news
        self._pausing = self.env.promises[self.number] = inf

    def _pause_if_watched(self, moment: float, reported: bool = False) -> Process:
        """Wait until no event is left before *moment*, if a router may look at the engine before it, or if what is
        *reported* then meets what other engines have done by that time."""
        if (self.watched or reported) and self.env.news < moment:
            yield from self._pause(moment)

    def _next_effect(self) -> float:
        """Before when nothing that the engine does concerns others, if it waits now."""
        now, first = self._pausing, self._sent[0][0] if self._sent else inf
        if self.watched or self.connector.may_start_flows:
            return now
        if self._concerning:
            first = min(first, self._times.earliest_end)
        return max(now, first)

    def sleep(self, turn: Turn) -> Process:
        """Wait for a request, or for the end of a transfer, which is reported with *turn*."""
        waiting, running = len(self.scheduler.waiting), len(self.scheduler.running)
        if turn.schedule.preempted:
            return
        if (waiting or running) and not (self._sent or self._awaits_transfers):
            raise self._stuck(self._times.now, waiting, running)
        times, env, connector, waited = self._times, self.env, self.connector, nan
        while True:
            first = min(connector.due, self._sent[0][0] if self._sent else inf)
            moment = max(times.now, first)
            if moment == waited or moment < env.news:
                break
            self._news = env.event()
            if moment == inf:
                yield self._news
            else:
                yield from self._pause(nextafter(moment, inf), self._news)
                waited = nan if self._news.triggered else moment
        if connector.due <= moment:
            turn.output, times.now = connector.report(moment), moment
            times.now += self._polling
            yield from self._pause_if_watched(times.now)
        elif first > times.now:
            times.wake(first)
