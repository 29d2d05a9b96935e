"""The workers' side of KV offloading: copies between GPU blocks and host memory, beside an engine's steps."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf

import simpy
from attrs import define, field

from ksim.flow.copied import Copied
from ksim.flow.log import Log
from ksim.kv_offload.copy_stream import CopyStream, Lane, Submitted
from ksim.kv_transfer.connector_worker import NoTransfers
from ksim.network.fleet_network import FleetNetwork
from ksim.scheduling.connector import ConnectorOutput
from ksim.scheduling.copies import Copy
from ksim.scheduling.schedule import Schedule

__all__ = ["OffloadWorker"]


@define(eq=False, kw_only=True)
class OffloadWorker(NoTransfers):
    """Makes the copies that engine `number`'s schedules begin: its GPUs load over `loading`, and store over `storing`.

    Loads begin when the workers have the schedule's batch.  Stores are handed in with the next one, so that they do not
    delay the tokens of their own.  Copies of one direction are serial; loads and stores run beside each other.
    """

    number: int
    network: FleetNetwork
    log: Log
    loading: Sequence[Lane]
    storing: Sequence[Lane]
    wake: Callable[[], object] = field(default=lambda: None)
    _loads: CopyStream = field(init=False)
    _stores: CopyStream = field(init=False)
    _deferred: list[Copy] = field(factory=list, init=False)  # stores to hand in with the next batch
    _unfinished: dict[int, Submitted] = field(factory=dict, init=False)
    _hurried: set[int] = field(factory=set, init=False)  # of the schedule about to be launched, handed in already
    _ended: deque[tuple[float, Copy]] = field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        self._loads = CopyStream(self.network, self.loading, self._end)
        self._stores = CopyStream(self.network, self.storing, self._end)

    # What the engine asks.

    def begin_turn(self, now: float) -> None:
        """Do nothing: the scheduler learns of copies from reports."""

    @property
    def may_start_flows(self) -> bool:
        return False  # what its GPUs' own lanes carry concerns no other engine

    @property
    def awaiting(self) -> bool:
        return bool(self._deferred or self._unfinished or self._ended)

    @property
    def due(self) -> float:
        if self._deferred:  # the next turn comes at once, as the engine core does not wait while copies are unfinished
            return 0.0
        return self._ended[0][0] if self._ended else inf

    def report(self, moment: float) -> ConnectorOutput | None:
        """Take the copies that had ended by *moment*."""
        taken: list[Copy] = []
        while self._ended and self._ended[0][0] <= moment:
            taken.append(self._ended.popleft()[1])
        if not taken:
            return None
        return ConnectorOutput(received=[copy.job for copy in taken if copy.loads and copy.asynchronous],
                               copied=[copy.number for copy in taken])

    # Steps.

    def hurry(self, schedule: Schedule, moment: float, computed: float | simpy.Event | None) -> simpy.Event | None:
        self._hand_in_deferred(moment, computed)
        for copy in schedule.copies:
            if copy.number in schedule.hurried:
                self._hurried.add(copy.number)
                # A load within the step is on a stream of its own, which waits for no kernels.
                self._submit(copy, moment, computed if copy.asynchronous else None)
        waited = [self._unfinished[number].done for number in schedule.hurried if number in self._unfinished]
        return simpy.AllOf(self.network.env, waited) if waited else None

    def launch(self, schedule: Schedule, scheduled: float, moment: float,
               computed: float | simpy.Event | None = None) -> None:
        self._hand_in_deferred(moment, computed)
        for copy in schedule.copies:
            if copy.number in self._hurried:
                continue
            if copy.loads:
                self._submit(copy, moment, computed)
            else:
                self._deferred.append(copy)
        self._hurried.clear()

    def _hand_in_deferred(self, moment: float, computed: float | simpy.Event | None) -> None:
        for copy in self._deferred:
            self._submit(copy, moment, computed)
        self._deferred.clear()

    def _submit(self, copy: Copy, moment: float, computed: float | simpy.Event | None) -> None:
        stream = self._loads if copy.loads else self._stores
        self._unfinished[copy.number] = stream.submit(copy, moment, computed)

    def _end(self, submitted: Submitted) -> None:
        """All GPUs have their part of a copy."""
        now, copy = self.network.env.now, submitted.copy
        del self._unfinished[copy.number]
        self._ended.append((now, copy))
        ends = ("cpu", "gpu") if copy.loads else ("gpu", "cpu")
        origin = self._origin(copy.number)
        self.log.add(Copied(now, copy.job.request.id, self.number, *ends, asked=submitted.asked,
                            began=submitted.began, bytes=submitted.bytes, tokens=copy.tokens,
                            disk=origin.get("disk", 0), storage=origin.get("storage", 0),
                            again=copy.job.preemptions > 0, sequence=copy.job.request.sequence))
        self.wake()

    def _origin(self, number: int) -> Mapping[str, int]:
        """How many tokens of a load came from which tier behind host memory."""
        return {}
