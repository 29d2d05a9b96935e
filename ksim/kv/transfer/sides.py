"""The ends of SGLang's transfers, whose schedulers know both sides of a pair.

SGLang's event loop polls: whatever has happened elsewhere by the time at which a turn begins, its schedule sees.  The
decode side asks for keys and values as soon as it has memory for them, which lets the prefill side begin; that sends
them chunk by chunk, and the first token with the last of them (0.5.23, srt/disaggregation/prefill.py and decode.py).
"""

from collections.abc import Sequence
from math import inf
from typing import ClassVar

import simpy
from attrs import define, field

from ksim.flow.events import KvTransferParams, Released
from ksim.kv.transfer.endpoint import Endpoint, transfer_of
from ksim.kv.transfer.transfer import KvTransfer
from ksim.scheduling.connector import Load
from ksim.scheduling.job import Job, Schedule
from ksim.scheduling.sglang.split import DecodeSide, PrefillSide, SplitSide

__all__ = ["DecodeEnd", "PrefillEnd"]

#: Seconds until the prefill side has the message that there is memory: an estimate of one over TCP.
MESSAGE = 1e-4


@define(eq=False)
class SideEnd(Endpoint):
    """Tells its `side`, the scheduler, what has happened, and reports nothing with batches."""

    side: SplitSide = field(init=False)

    def serve(self, scheduler: SplitSide) -> None:
        self.side = scheduler

    @property
    def awaiting(self) -> bool:
        return self.due < inf

    @property
    def due(self) -> float:
        """Since when there is something to be polled; inf for nothing."""
        return min(self._reports[0].time, self._resumed) if self._reports else self._resumed

    def begin_turn(self, now: float) -> None:
        """Let the scheduler see what has happened by *now*."""
        self._resumed = inf
        while self._reports and self._reports[0].time <= now:
            self._hear(self._reports.popleft().job, now)

    def _hear(self, job: Job, now: float) -> None:
        """Let the scheduler know *now* that the keys and values of *job* are over."""
        raise NotImplementedError

    def ended(self) -> Sequence[Job]:
        ended = [*self.side.ended]
        self.side.ended.clear()
        return ended

    def report(self, moment: float) -> None:
        return None


@define(eq=False)
class PrefillEnd(SideEnd):
    """The end that sends: a chunk is sent once its result is taken in, and what was cached at once."""

    side: PrefillSide = field(init=False)
    _sends: list[tuple[Job, int]] = field(factory=list, init=False)

    @property
    def may_start_flows(self) -> bool:
        return self.side.has_requests

    def begin_turn(self, now: float) -> None:
        super().begin_turn(now)
        for job in self.side.asking:
            if transfer_of(job).target_ready:
                self.side.bootstrapped(job)

    def _waits(self, transfer: KvTransfer) -> bool:
        return any(transfer_of(job) is transfer for job in self.side.asking)

    def _hear(self, job: Job, now: float) -> None:
        self.side.transferred(job)
        self.side.ended.append(job)
        self.network.log.add(Released(now, job.request.id, self.number))

    def send(self, job: Job, tokens: int) -> None:
        """Send the first *tokens* tokens of *job*, as far as they were not sent."""
        self._sends.append((job, tokens))

    def launch(self, schedule: Schedule, scheduled: float, moment: float,
               computed: float | simpy.Event | None = None) -> None:
        """Send what was computed before *schedule*: with overlap, only what newcomers have in the cache."""
        at_once = self._sends
        if self.side.limits.async_scheduling:
            at_once = [(job, tokens) for job, tokens in self._sends if job in schedule.admitted]
        self._sends = [send for send in self._sends if send not in at_once]
        self._begin_to_send(at_once, moment)

    def chunks_computed(self, schedule: Schedule, moment: float) -> None:
        """The result of *schedule* is taken in at *moment*."""
        sends, self._sends = self._sends, []
        self._begin_to_send(sends, moment)

    def _begin_to_send(self, sends: Sequence[tuple[Job, int]], moment: float) -> None:
        for job, tokens in sends:
            transfer_of(job).chunk_computed(tokens, moment)
            if tokens == job.request.prompt:
                super().finish(job, moment)

    def finish(self, job: Job, moment: float) -> None:
        """Do nothing: *job* has ended since nobody needs its keys and values any more."""

    def abort(self, params: KvTransferParams) -> None:
        """The engine has dropped the request that has these *params*: what was prefilled is not wanted any more."""
        super().abort(params)
        if params.transfer.prefilled:
            self.network.at(self.network.env.now, params.transfer.release_blocks)


@define(eq=False)
class DecodeEnd(SideEnd):
    """The end that receives: the first token comes with the keys and values, also where none are lacking.

    Both sides know each other from the beginning.
    """

    takes_tokens: ClassVar[bool] = True

    side: DecodeSide = field(init=False)

    def begin_turn(self, now: float) -> None:
        super().begin_turn(now)
        for job in self.side.asking:
            self.side.bootstrapped(job)

    def _hear(self, job: Job, now: float) -> None:
        if job in self.side.receiving:  # it has not been dropped
            self.side.transferred(job)

    def begin(self, load: Load) -> None:
        transfer_of(load.job).load_begun = True
        self._unloaded -= 1
        self._loads.append(load)

    def launch(self, schedule: Schedule, scheduled: float, moment: float,
               computed: float | simpy.Event | None = None) -> None:
        """Ask for what is to be loaded: the scheduler does that before it makes a batch, and no worker."""
        super().launch(schedule, scheduled, (scheduled if schedule else moment) + MESSAGE, computed)
