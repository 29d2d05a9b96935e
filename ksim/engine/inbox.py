"""The inbox of an engine whose steps are SimPy events: requests and aborts that its next turn sees."""

from collections.abc import Callable, Container, Sequence

from attrs import define, field

from ksim.engine.connector_waits import ConnectorWaits
from ksim.engine.data_parallel_group import DataParallelGroup
from ksim.engine.ends import log_abort
from ksim.flow.kv_transfer import KvTransferParams
from ksim.flow.request import Request
from ksim.scheduling.engine_loop import Turn
from ksim.scheduling.job import Job, State

__all__ = ["Inbox", "Sampled", "tokens_of"]

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
