"""The workers' side of KV offloading: copies between GPU blocks and host memory, beside an engine's steps.

Copies of one direction are a stream: one goes after the other, each on all GPUs of the engine at once.  Blocks of
copies that have not ended must not be overwritten.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import Any

import simpy
from attrs import define, field, frozen

from ksim.flow.events import Copied
from ksim.flow.log import Log
from ksim.kv.transfer.endpoint import NoTransfers
from ksim.network.network import FleetNetwork
from ksim.scheduling.connector import ConnectorOutput
from ksim.scheduling.job import Copy, Job, Schedule

__all__ = ["CopyStream", "Lane", "Submitted", "OffloadWorker", "SharingWorker", "CopiesUnderWay", "job_blocks"]


@define(eq=False)
class CopiesUnderWay:
    """Numbers copies in the order in which they begin.

    A store of a request that has ended is watched: the cache may give its blocks to others, who will write them anew.
    """

    _copies: dict[int, Copy] = field(factory=dict, init=False)
    _next: int = field(default=0, init=False)
    _watched: dict[int, set[int]] = field(factory=dict, init=False)  # stores, by their blocks

    def __len__(self) -> int:
        return len(self._copies)

    def __getitem__(self, number: int) -> Copy:
        return self._copies[number]

    @property
    def watching(self) -> bool:
        """Whether it matters which blocks the cache hands out."""
        return bool(self._watched)

    def begin(self, **parts: Any) -> Copy:
        """Begin a copy of these *parts*."""
        copy = self._copies[self._next] = Copy(number=self._next, **parts)
        self._next += 1
        return copy

    def end(self, number: int) -> Copy:
        """The copy of that *number* has ended."""
        copy = self._copies.pop(number)
        for block in copy.blocks if self._watched and not copy.loads else ():
            stores = self._watched.get(block)
            if stores is not None:
                stores.discard(number)
                if not stores:
                    del self._watched[block]
        return copy

    def watch(self, copy: Copy) -> None:
        """The request of *copy* has ended: if it is a store, watch its blocks."""
        for block in () if copy.loads else copy.blocks:
            self._watched.setdefault(block, set()).add(copy.number)

    def touched(self, blocks: set[int]) -> set[int]:
        """The numbers of the watched stores with any of these *blocks*."""
        return {number for block in self._watched.keys() & blocks for number in self._watched[block]}


def job_blocks(blocks: Sequence[int], chunks: Sequence[int], size: int) -> list[int]:
    """Of a job's *blocks*, those of its *chunks*, of *size* blocks each."""
    return [block for index in chunks for block in blocks[index * size: (index + 1) * size]]


@frozen
class Lane:
    """The links between GPU number `gpu` and the memory of its node, and the bytes of a KV block that pass them."""

    path: Sequence[int]
    block_bytes: float
    gpu: int = 0


@define(eq=False)
class Submitted:
    """A copy that the workers have known of since `asked`; `done` fires when all GPUs have their part of it.

    It does not begin before `computed`: the time at which the GPUs have computed what was launched before, or what
    fires then.
    """

    copy: Copy
    asked: float
    computed: float | simpy.Event | None
    done: simpy.Event
    began: float = nan
    bytes: float = 0.0
    _left: int = 0


@define(eq=False)
class CopyStream:
    """vLLM's handler of one direction (v1/kv_offload/cpu/gpu_worker.py): each copy has a CUDA stream of its own, which
    waits for the one before it and for the kernels launched so far."""

    network: FleetNetwork
    lanes: Sequence[Lane]
    on_end: Callable[[Submitted], None]
    _waiting: deque[Submitted] = field(factory=deque, init=False)
    _active: Submitted | None = field(default=None, init=False)

    def submit(self, copy: Copy, asked: float, computed: float | simpy.Event | None) -> Submitted:
        """Hand in *copy* at *asked*, which may be a moment to come."""
        submitted = Submitted(copy, asked, computed, self.network.env.event())
        self._waiting.append(submitted)
        if self._active is None:
            self._next()
        return submitted

    def _next(self) -> None:
        self._active = self._waiting.popleft() if self._waiting else None
        if self._active is None:
            return
        computed = self._active.computed
        if isinstance(computed, simpy.Event) and computed.callbacks is not None:
            computed.callbacks.append(lambda _: self._begin_at(0.0))
        else:
            self._begin_at(computed if isinstance(computed, float) else 0.0)

    def _begin_at(self, moment: float) -> None:
        assert self._active is not None, "a stream without copies waits for nothing"
        moment = max(moment, self._active.asked)
        if moment > self.network.env.now:
            self.network.at(moment, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        active = self._active
        assert active is not None, "a stream without copies waits for nothing"
        active.began, active._left = self.network.env.now, len(self.lanes)
        for lane in self.lanes:
            flow = self.network.flows.start(len(active.copy.blocks) * lane.block_bytes, lane.path)
            active.bytes += flow.size
            flow.done.callbacks.append(lambda _: self._part_ended())

    def _part_ended(self) -> None:
        active = self._active
        assert active is not None, "only an active copy has parts"
        active._left -= 1
        if active._left == 0:
            active.done.succeed()
            self.on_end(active)
            self._next()


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


@define(eq=False, kw_only=True)
class SharingWorker(OffloadWorker):
    """Logs reads and writes of the storage; its `connector` knows from where each load came."""

    connector: Any

    def _log_copy(self, job: Job, ends: tuple[str, str], began: tuple[float, float], size: float, tokens: int) -> None:
        """Log that *size* bytes of *job* have gone between the *ends*, asked for and begun at those times."""
        self.log.add(Copied(self.network.env.now, job.request.id, self.number, *ends, asked=began[0], began=began[1],
                            bytes=size, tokens=tokens))

    def _origin(self, number: int) -> Mapping[str, int]:
        origin: Mapping[str, int] = self.connector.origins.pop(number, {})
        return origin

    @property
    def may_start_flows(self) -> bool:
        return True  # other engines share the storage

    @property
    def waits_for_peers(self) -> bool:
        return True  # what others have written is found from then on
