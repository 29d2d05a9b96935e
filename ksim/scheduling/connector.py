"""What a scheduler asks a KV connector, and what the connector's workers report; vLLM's `KVConnectorBase_V1`."""

from collections.abc import Container, Mapping, Sequence
from typing import ClassVar, Protocol

from attrs import field, frozen

from ksim.flow.request import Request
from ksim.scheduling.copies import Copy, Load
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL
from ksim.scheduling.schedule import Schedule

__all__ = ["Connector", "ConnectorOutput", "Contents", "Copy", "Load", "NoCopies"]

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
