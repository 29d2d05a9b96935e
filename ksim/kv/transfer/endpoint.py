"""An engine's side of transfers: its scheduler's connector, and what its workers do and report."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any, ClassVar, Protocol

import simpy
from attrs import define, field

from ksim.flow.events import KvTransferParams
from ksim.kv.transfer.transfer import KvPlacement, KvTransfer, TransferNetwork
from ksim.scheduling.connector import ConnectorOutput, Load, NoCopies
from ksim.scheduling.job import Job, Schedule

__all__ = ["ConnectorWorker", "NoCopying", "NoTransfers", "Endpoint", "transfer_of"]


class ConnectorWorker(Protocol):
    """The workers' side of an engine's KV connector: what they are told, and what they report.

    `wake` is called when there is something to report, or when a request that waited may go on.
    """

    wake: Callable[[], object]

    def begin_turn(self, now: float) -> None:
        """The scheduler is about to make a schedule: it sees what has ended by *now*."""
        ...

    def ended(self) -> Sequence[Job]:
        """The jobs that have ended, as the scheduler has seen just now, and are in no batch."""
        ...

    @property
    def may_start_flows(self) -> bool:
        """Whether bytes that concern other engines may begin to move with the next schedule."""
        ...

    @property
    def awaiting(self) -> bool:
        """Whether something is on its way, or awaited, that may change what the engine decides."""
        ...

    @property
    def due(self) -> float:
        """Since when there is something to report, or a request that waited may go on; inf for nothing."""
        ...

    def report(self, moment: float) -> ConnectorOutput | None:
        """Take what had ended by *moment*."""
        ...

    # Steps.

    def hurry(self, schedule: Schedule, moment: float, computed: float | simpy.Event | None) -> simpy.Event | None:
        """The workers have a batch at *moment*, before which the copies that *schedule* has hurried must end; return
        what fires when they have, or None where they have ended.

        *computed* is when the GPUs have computed all batches before: a time, or what fires then; None if they have.
        """
        ...

    def launch(self, schedule: Schedule, scheduled: float, moment: float,
               computed: float | simpy.Event | None = None) -> None:
        """The workers get a batch, or an empty one, at *moment*, as was *scheduled* before."""
        ...

    def chunks_computed(self, schedule: Schedule, moment: float) -> None:
        """The chunks of prompts in *schedule* are computed, and that is known from *moment* on."""
        ...

    # Requests that another engine prefills, or decodes.

    @property
    def expected(self) -> Collection[KvTransfer]:
        """Transfers whose requests will come to the engine."""
        ...

    @property
    def waits_for_peers(self) -> bool:
        """Whether requests begin once another engine is ready for them."""
        ...

    def expect(self, params: KvTransferParams, moment: float) -> None:
        """A request comes to the engine at *moment*."""
        ...

    def finish(self, job: Job, moment: float) -> None:
        """The prompt of *job* is prefilled for another engine, which is known at *moment*."""
        ...


class NoCopying:
    """The answers of workers that copy nothing between tiers."""

    __slots__ = ()

    def hurry(self, schedule: Schedule, moment: float, computed: float | simpy.Event | None) -> simpy.Event | None:
        return None


class NoTransfers:
    """The answers of workers that send nothing to other engines, and take nothing from them."""

    __slots__ = ()

    def ended(self) -> Sequence[Job]:
        return ()

    @property
    def expected(self) -> Sequence[KvTransfer]:
        return ()

    @property
    def waits_for_peers(self) -> bool:
        return False

    def expect(self, params: KvTransferParams, moment: float) -> None:
        """Do nothing: no request is split."""

    def finish(self, job: Job, moment: float) -> None:
        """Do nothing: no prompt is prefilled for another engine."""

    def chunks_computed(self, schedule: Schedule, moment: float) -> None:
        """Do nothing: nobody takes chunks."""


@define
class _Report:
    """A load or a send has ended at `time`."""

    time: float
    job: Job
    sent: bool
    failed: tuple[int, ...] = ()


@define(eq=False)
class Endpoint(NoCopies, NoCopying):
    """The transfers of engine `number`, whose KV cache has blocks of `block_tokens` tokens.

    The scheduler asks it as its connector.  The engine tells it what its workers get to know, and takes what they
    report.  `wake` is called when there is something to report, or when a request that waited may go on.
    """

    #: Whether a first token that is handed over comes apart from the prompt, and needs no step.
    takes_tokens: ClassVar[bool] = False

    number: int
    placement: KvPlacement
    block_tokens: int
    network: TransferNetwork
    consumes: bool = True
    recomputes: bool = False
    wake: Callable[[], object] = field(default=lambda: None)
    #: Transfers whose requests wait until the other engine is ready.
    waiting_for_peer: set[KvTransfer] = field(factory=set, init=False)
    #: Transfers whose requests will come to the engine.
    expected: set[KvTransfer] = field(factory=set, init=False)
    #: Finished jobs whose sends were not announced to the workers yet.
    unannounced: int = field(default=0, init=False)
    _reports: deque[_Report] = field(factory=deque, init=False)
    _loads: list[Load] = field(factory=list, init=False)  # that the workers do not know of yet
    _cached: list[KvTransfer] = field(factory=list, init=False)  # whose KV the prefix cache has
    _leases: deque[tuple[float, KvTransfer]] = field(factory=deque, init=False)
    _unloaded: int = field(default=0, init=False)  # requests that have not begun to load
    _timed: bool = field(default=False, init=False)
    _resumed: float = field(default=inf, init=False)  # since when a request that waited may go on

    def blocks(self, tokens: int) -> int:
        """How many blocks *tokens* tokens need."""
        return -(-tokens // self.block_tokens)

    def serve(self, scheduler: Any) -> None:
        """Take note of the *scheduler* that will ask; most need not know it."""

    def begin_turn(self, now: float) -> None:
        """The scheduler is about to ask: it will see that requests may go on."""
        self._resumed = inf

    def ended(self) -> Sequence[Job]:
        return ()

    @property
    def awaiting(self) -> bool:
        return bool(self.waiting_for_peer) or self.due < inf

    @property
    def waits_for_peers(self) -> bool:
        return self.network.connector.by_chunk

    @property
    def may_start_flows(self) -> bool:
        """Whether the next schedule may let bytes move: a request may get its blocks, or workers are told of some."""
        return bool(self._unloaded or self._cached or (self.unannounced and not self.network.connector.pull))

    # What the scheduler asks.

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        params = job.kv_transfer_params
        if params is None:
            return 0, False
        transfer: KvTransfer = params.transfer
        if params.do_remote_decode:
            waits = self.network.connector.by_chunk and not transfer.target_ready
            return self._wait_for_peer(transfer) if waits else (0, False)
        if transfer.load_begun:
            return 0, False
        if transfer.tokens > computed:
            return transfer.tokens - computed, True
        if self.network.connector.concurrent and not transfer.prefilled:
            self._cached.append(transfer)
            return self._wait_for_peer(transfer)
        return 0, False

    def _wait_for_peer(self, transfer: KvTransfer) -> tuple[None, bool]:
        self.waiting_for_peer.add(transfer)
        return None, True

    def begin(self, load: Load) -> None:
        params = load.job.kv_transfer_params
        if params is None or not params.do_remote_prefill or params.transfer.load_begun:
            return
        params.transfer.load_begun = True
        self._unloaded -= 1
        if load.tokens:
            self._loads.append(load)
        else:
            self._cached.append(params.transfer)

    def sends_early(self, job: Job) -> bool:
        params = job.kv_transfer_params
        return params is not None and params.do_remote_decode and self.network.connector.by_chunk

    def holds(self, job: Job, complete: bool) -> bool:
        params = job.kv_transfer_params
        held = bool(params and params.do_remote_decode and complete and not params.transfer.ended)
        self.unannounced += held
        return held

    # What the workers get to know.

    def launch(self, schedule: Schedule, scheduled: float, moment: float,
               computed: float | simpy.Event | None = None) -> None:
        """The workers get a batch, or an empty one, at *moment*, as was *scheduled* before."""
        for load in self._loads:
            transfer_of(load.job).allocate(load, scheduled, moment)
        self._loads.clear()
        for job in schedule.sends:
            self.unannounced -= 1
            transfer_of(job).source_ready(moment)
        for transfer in self._cached:
            transfer.skip_load(moment)
        self._cached.clear()

    def chunks_computed(self, schedule: Schedule, moment: float) -> None:
        """The chunks of prompts in *schedule* are computed, and that is known from *moment* on."""
        if self.network.connector.by_chunk:
            for entry in schedule.entries:
                params = entry.job.kv_transfer_params
                if params and params.do_remote_decode:
                    params.transfer.chunk_computed(entry.start + entry.tokens, moment)

    def finish(self, job: Job, moment: float) -> None:
        """The prompt of *job* is prefilled; the lease of its blocks begins at *moment*."""
        transfer = transfer_of(job)
        transfer.finish(moment)
        if transfer in transfer.target.waiting_for_peer:
            self.network.at(moment, lambda: transfer.target.resume(transfer))
        lease = inf if self.network.connector.by_chunk else self.network.connector.lease  # D takes chunks meanwhile
        if not transfer.ended and lease < inf:
            transfer.deadline = moment + lease
            self._leases.append((transfer.deadline, transfer))
            self._time_leases()

    def expect(self, params: KvTransferParams, moment: float) -> None:
        """A request comes to the engine at *moment*."""
        if params.do_remote_prefill:
            self._unloaded += 1
            self.expected.discard(params.transfer)
            params.transfer.expect(moment)

    def abort(self, params: KvTransferParams) -> None:
        """The engine has dropped the request that has these *params*.

        An engine that was to decode it tells the other, with its next batch, that it needs no KV.
        """
        transfer = params.transfer
        self.waiting_for_peer.discard(transfer)
        if params.do_remote_decode:
            transfer.target.expected.discard(transfer)
            if not transfer.prefilled:
                transfer.give_up()
            elif transfer.deadline == inf and not transfer.load_begun:  # nobody else would ever free them
                self.network.at(self.network.env.now, transfer.release_blocks)
        elif not transfer.load_begun:
            transfer.load_begun = True
            transfer.ended |= not transfer.prefilled
            self._unloaded -= 1
            self._cached.append(transfer)

    def _time_leases(self) -> None:
        """See to it that the first lease ends in time."""
        while self._leases and (self._leases[0][1].ended or self._leases[0][1].lease_renewed):
            self._leases.popleft()
        if self._leases and not self._timed:
            self._timed = True
            self.network.at(self._leases[0][0], self._end_leases)

    def _end_leases(self) -> None:
        self._timed = False
        while self._leases and self._leases[0][0] <= self.network.env.now:
            self._leases.popleft()[1].expire()
        self._time_leases()

    # What the workers report.

    def received(self, transfer: KvTransfer, now: float, failed: bool = False) -> None:
        """A load has ended, or has *failed*."""
        load = transfer.load
        assert load is not None, "what is received was asked for"
        first = load.start // self.block_tokens
        places = tuple(range(first, self.blocks(load.start + load.tokens))) if failed else ()
        self._add(_Report(now, load.job, sent=False, failed=places))

    def sent(self, transfer: KvTransfer, now: float) -> None:
        """The blocks of a transfer are not needed any more."""
        assert transfer.job is not None, "what is sent was computed"
        self._add(_Report(now, transfer.job, sent=True))

    def resume(self, transfer: KvTransfer) -> None:
        """The other engine is ready, so a request may go on, if it has come and waited for that."""
        transfer.target_ready = True
        if self._waits(transfer):
            self.waiting_for_peer.discard(transfer)
            self._resumed = min(self._resumed, self.network.env.now)
            self.wake()

    def _waits(self, transfer: KvTransfer) -> bool:
        """Whether the request of *transfer* is here, and waits for the other engine."""
        return transfer in self.waiting_for_peer

    def _add(self, report: _Report) -> None:
        self._reports.append(report)
        self.wake()

    @property
    def due(self) -> float:
        """Since when there is something to report, or a request that waited may go on; inf for nothing."""
        return min(self._reports[0].time, self._resumed) if self._reports else self._resumed

    def report(self, moment: float) -> ConnectorOutput | None:
        """Take what had ended by *moment*."""
        taken: list[_Report] = []
        while self._reports and self._reports[0].time <= moment:
            taken.append(self._reports.popleft())
        if not taken:
            return None
        return ConnectorOutput([report.job for report in taken if not report.sent],
                               [report.job for report in taken if report.sent],
                               {report.job: report.failed for report in taken if report.failed})


def transfer_of(job: Job) -> KvTransfer:
    """The transfer of *job*, which has one."""
    assert job.kv_transfer_params is not None, "only split requests are transferred"
    transfer: KvTransfer = job.kv_transfer_params.transfer
    return transfer
