"""What a scheduler asks a KV connector, and what the connector's workers report; vLLM's `KVConnectorBase_V1`.

`TransferState` has the jobs of an engine whose KV is on its way, in or out.
"""

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from attrs import define, field, frozen

from ksim.flow.request import Request
from ksim.kv.cache import Cache
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Copy, Job, Load, Schedule, State
from ksim.scheduling.policies import ALL

__all__ = ["Connector", "ConnectorOutput", "Contents", "Copy", "Load", "NoCopies", "TransferState", "InvalidBlocks"]


#: By the names of tiers, from the upper one down, the keys of what is in them.
Contents = Mapping[str, Container[int]]


@frozen
class ConnectorOutput:
    """What the workers report with a batch's output; vLLM's `KVConnectorOutput`.

    The asynchronous loads of `received` jobs have ended, also those of jobs that were aborted meanwhile.  The KV of
    `sent` jobs was read, or their lease is over.  Loads `failed` at these places of a job's blocks, counted from its
    first block; a failed asynchronous load is reported as received too, then or later.  The copies with the numbers
    `copied` have ended; a load among them is also `received`.
    """

    received: Sequence[Job] = ()
    sent: Sequence[Job] = ()
    failed: Mapping[Job, Sequence[int]] = field(factory=dict)
    copied: Sequence[int] = ()


class Connector(Protocol):
    """Says what is external for a job, and whose blocks are held.  It touches neither the cache nor the clock."""

    @property
    def consumes(self) -> bool:
        """Whether the engine may load KV (vLLM's `kv_role` is kv_consumer or kv_both)."""
        ...

    @property
    def recomputes(self) -> bool:
        """Whether a job computes here what could not be loaded (vLLM's `kv_load_failure_policy`); otherwise it
        fails."""
        ...

    def came(self, job: Job) -> None:
        """A *job* has come to the queue; vLLM's `on_new_request`."""
        ...

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        """How many tokens beyond the *computed* ones can be loaded, or None if that is not known yet, and whether the
        load is asynchronous; vLLM's `get_num_new_matched_tokens`.

        A job is asked for whenever it could be admitted with nothing computed: in every schedule while it does not
        fit, and again after a preemption.  While it does not fit, the answer stays the same once it is known: schedules
        that only repeat are not made anew.
        """
        ...

    def begin(self, load: Load) -> None:
        """Take note of a *load* whose blocks are allocated; vLLM's `update_state_after_alloc`.

        A load of 0 tokens says that the job is admitted without one, after it was asked for.
        """
        ...

    def sends_early(self, job: Job) -> bool:
        """Whether KV of *job* is read before its whole prompt is computed.

        Such a job gets all blocks of its prompt when it is admitted, so none is preempted while its blocks are read.
        SGLang's prefill server does the same, and retracts no request.
        """
        ...

    def holds(self, job: Job, complete: bool) -> bool:
        """Whether the blocks of *job*, which has ended, stay until they are read; vLLM's `request_finished`.

        It is called once for each job that ends; a job that is not *complete* was aborted, or failed.
        """
        ...

    @property
    def copying(self) -> bool:
        """Whether a copy that the connector began has not been reported yet; the engine takes turns until then."""
        ...

    @property
    def follows_decodes(self) -> bool:
        """Whether it must see the tokens of decodes step by step, so that none may join the decode set."""
        ...

    def schedule_made(self, schedule: Schedule, grown: Sequence[Job]) -> None:
        """Add to the *schedule*, just made, the `copies` that begin with it, and the numbers of those that it has
        `hurried`; vLLM's `build_connector_meta`.

        Of its decodes, only those that have *grown* got a block in it, or filled one.
        """
        ...

    def take(self, numbers: Sequence[int]) -> None:
        """Take note that the copies with these *numbers* have ended; vLLM's `update_connector_output`."""
        ...

    def quiet_steps(self, decodes: DecodeSet, step: int) -> int:
        """How many schedules after *step* that only repeat the latest one the connector need not see: it would begin
        and hurry nothing."""
        ...

    @property
    def contents(self) -> Contents:
        """What is in the tiers below the GPU now, or on its way there; a tier tells its `listener` what comes and
        goes."""
        ...

    def tier_hits(self, request: Request, cached: int, contents: Contents | None = None) -> Mapping[str, int]:
        """How many tokens of the prompt of *request*, beyond the first *cached* ones, are in each tier below the GPU,
        by the tiers' names, each continuing the one above; routers ask, and it changes nothing.

        Tiers have *contents*, by default what is in them now.
        """
        ...


class NoCopies:
    """A connector's answers about copies where it makes none."""

    __slots__ = ()
    copying: ClassVar[bool] = False
    follows_decodes: ClassVar[bool] = False

    def came(self, job: Job) -> None:
        """Do nothing: nothing is copied ahead."""

    def schedule_made(self, schedule: Schedule, grown: Sequence[Job]) -> None:
        """Add nothing."""

    def take(self, numbers: Sequence[int]) -> None:
        """Do nothing: no copy ends."""

    def quiet_steps(self, decodes: DecodeSet, step: int) -> int:
        return ALL

    @property
    def contents(self) -> Contents:
        return {}

    def tier_hits(self, request: Request, cached: int, contents: Contents | None = None) -> Mapping[str, int]:
        return {}


@define(eq=False)
class TransferState:
    """Which jobs of a scheduler with a KV connector load or send; vLLM's `Scheduler` has several sets for that.

    The loads of `received` jobs have ended.  `held` jobs have ended themselves while their blocks must stay: until they
    are sent, or their load has ended.  `unfinished` jobs are in the middle of their prompt, or load a part of it: other
    loads must leave them room.  Blocks of jobs in `deferred_frees` are freed once a batch is back, as in vLLM.
    """

    cache: Cache
    received: set[Job] = field(factory=set)
    held: dict[Job, None] = field(factory=dict)
    unfinished: dict[Job, None] = field(factory=dict)
    deferred_frees: deque[tuple[int, Job]] = field(factory=deque)

    def forget(self, job: Job) -> None:
        """Forget *job*, which has ended, except that it may hold blocks."""
        self.received.discard(job)
        self.unfinished.pop(job, None)

    def begin(self, job: Job, extra: int) -> None:
        """Note that *job* loads.  One that holds blocks for all its tokens, and *extra* ones, will need no more."""
        if self._missing(job, extra):
            self.unfinished[job] = None

    def end_held(self, jobs: Sequence[Job]) -> None:
        """Free the blocks of those of *jobs* that hold them after their end."""
        for job in jobs:
            if job in self.held:
                del self.held[job]
                self.cache.free(job.block_table)

    def receive(self, jobs: Sequence[Job]) -> None:
        """Note that the loads of *jobs* have ended."""
        self.received.update(job for job in jobs if job.state is State.LOADING)
        self.end_held(jobs)

    def free_deferred(self, number: int) -> bool:
        """Free the blocks that wait for the schedule of that *number* to be back; return whether there were some."""
        due = bool(self.deferred_frees) and self.deferred_frees[0][0] <= number
        while self.deferred_frees and self.deferred_frees[0][0] <= number:
            self.cache.free(self.deferred_frees.popleft()[1].block_table)
        return due

    def reserved(self, extra: int) -> int:
        """How many free blocks the unfinished jobs need for their tokens, and for *extra* tokens each."""
        return sum(self._missing(job, extra) for job in self.unfinished) + self.cache.blocks(extra)

    def _missing(self, job: Job, extra: int) -> int:
        return max(0, self.cache.blocks(job.num_tokens + extra) - self.cache.held_blocks(job.block_table))


@define(eq=False)
class InvalidBlocks:
    """The blocks that could not be loaded (vLLM's invalid blocks), at the `places` of the jobs that loaded them.

    One that two jobs share is charged to the first of them, which will compute it again for both.
    """

    cache: Cache
    places: Mapping[Job, Sequence[int]]
    _charged: set[tuple[Job, int]] = field(factory=set)

    def charge(self, job: Job, blocks: int) -> tuple[bool, int | None]:
        """Whether any of the first *blocks* blocks of *job* is bad, and the place of the first that is charged to
        it."""
        hits = sorted(self._among(job, blocks), key=lambda bad: bad[1])
        new = [bad for bad in hits if bad not in self._charged]
        self._charged.update(new)
        return bool(hits), new[0][1] if new else None

    def _among(self, job: Job, blocks: int) -> Iterator[tuple[Job, int]]:
        for origin, places in self.places.items():
            for index in places:
                if index < blocks and self.cache.same_block(origin.block_table, job.block_table, index):
                    yield origin, index
