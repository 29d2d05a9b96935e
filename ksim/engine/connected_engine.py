"""An engine that goes ahead of SimPy's clock, and sends and takes KV: its turns concern other engines."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf, nan, nextafter

import simpy
from attrs import define, field

from ksim.engine.engine import Process
from ksim.engine.lookahead_engine import LookaheadEngine
from ksim.flow.kv_transfer import KvTransferParams
from ksim.flow.request import Request
from ksim.kv_transfer.endpoint import Endpoint
from ksim.scheduling.engine_loop import Turn
from ksim.scheduling.job import Job

__all__ = ["ConnectedEngine"]

#: When a request comes, its number, the request, what its end causes, whether at that moment, and its parameters.
Sending = tuple[float, int, Request, Callable[[], object], bool, KvTransferParams | None]


@define(eq=False, kw_only=True)
class ConnectedEngine(LookaheadEngine):
    """Goes ahead up to the next event, and up to what other engines may cause, which each of them promises.

    Schedules are not repeated while a transfer is under way, as its end may change them.
    """

    endpoint: Endpoint
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
            self.endpoint.expect(params, moment)
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

    def _run(self) -> Process:
        times = self._times
        while True:
            if self._horizon < times.now:
                yield from self._pause(times.now)
            self._receive_sent(times.now)
            self.endpoint.begin_turn()
            turn = yield from self._loop.run_turn(self)
            if turn.work and not self._awaits_transfers and (more := self._forecast.repeats_left()) > 1:
                batch, seconds = turn.work
                self._go_on(batch, seconds, more)

    def launch(self, turn: Turn) -> tuple[()]:
        super().launch(turn)
        times = self._times
        if turn.empty:
            turn.launched = prepared = times.now = times.now + self.host.core.making(0, 0, self.workers)
        else:
            turn.launched, prepared = times.worker, self._recorder.prepared
        self.endpoint.launch(turn.schedule, turn.now, prepared)
        return ()

    def wait(self, turn: Turn) -> Process:
        if self.scheduler.transfers_pending:
            if self.env.news <= turn.launched:
                yield from self._pause(nextafter(turn.launched, inf))
            turn.output = self.endpoint.report(turn.launched)
        if turn.empty:
            return
        taken, delivered = self._times.finish()
        self._recorder.complete(taken, delivered)
        if self.watched and self.env.news < taken:
            yield from self._pause(taken)

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
            self.env.timeout(max(delivered - self.env.now, 0.0)).callbacks.append(lambda _: self._end(finished))
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
        if self.watched or env.next_request == -inf or self._awaits_transfers or self._prefill_waits_for_peer:
            return env.news
        first = env.next_request
        for transfer in self.endpoint.expected:
            answered = transfer.answered
            if answered == inf and (answered := env.promises.get(transfer.source.number, inf)) == inf:
                return env.news
            first = min(first, answered)
        return first

    @property
    def _prefill_waits_for_peer(self) -> bool:
        """Whether requests begin once another engine is ready for them."""
        return self.endpoint.network.connector.by_chunk

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

    def _next_effect(self) -> float:
        """Before when nothing that the engine does concerns others, if it waits now."""
        now, first = self._pausing, self._sent[0][0] if self._sent else inf
        if self.watched or self.endpoint.may_start_flows:
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
        times, env, endpoint, waited = self._times, self.env, self.endpoint, nan
        while True:
            first = min(endpoint.due, self._sent[0][0] if self._sent else inf)
            moment = max(times.now, first)
            if moment == waited or moment < env.news:
                break
            self._news = env.event()
            if moment == inf:
                yield self._news
            else:
                yield from self._pause(nextafter(moment, inf), self._news)
                waited = nan if self._news.triggered else moment
        if endpoint.due <= moment:
            turn.output, times.now = endpoint.report(moment), moment
            times.now += self._polling
        elif first > times.now:
            times.wake(first)
