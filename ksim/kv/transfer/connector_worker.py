"""What an engine calls of its KV connector: the side of the workers, which move KV and report what has ended."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import simpy

from ksim.flow.events import KvTransferParams
from ksim.kv.transfer.transfer import Transfer
from ksim.scheduling.connector import ConnectorOutput
from ksim.scheduling.job import Job
from ksim.scheduling.schedule import Schedule

__all__ = ["ConnectorWorker", "NoCopying", "NoTransfers"]


class ConnectorWorker(Protocol):
    """The workers' side of an engine's KV connector: what they are told, and what they report.

    `wake` is called when there is something to report, or when a request that waited may go on.
    """

    wake: Callable[[], object]

    def begin_turn(self, now: float) -> None:
        """The scheduler is about to make a schedule: it sees what has ended by *now*."""
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
    def expected(self) -> Collection[Transfer]:
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

    @property
    def expected(self) -> Sequence[Transfer]:
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
