"""What a scheduler asks a KV connector, and what the connector's workers report; vLLM's `KVConnectorBase_V1`."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import field, frozen

from ksim.scheduling.job import Job


@frozen
class Load:
    """KV of a job that comes from elsewhere: `tokens` tokens after the first `start`, which the prefix cache holds.

    An `asynchronous` load lets the job wait (vLLM's WAITING_FOR_REMOTE_KVS); any other ends before the step's kernels
    begin.
    """

    job: Job
    start: int
    tokens: int
    asynchronous: bool = True


@frozen
class ConnectorOutput:
    """What the workers report with a batch's output; vLLM's `KVConnectorOutput`.

    The asynchronous loads of `received` jobs have ended, also those of jobs that were aborted meanwhile.  The KV of
    `sent` jobs was read, or their lease is over.  Loads `failed` at these places of a job's blocks, counted from its
    first block; a failed asynchronous load is reported as received too, then or later.
    """

    received: Sequence[Job] = ()
    sent: Sequence[Job] = ()
    failed: Mapping[Job, Sequence[int]] = field(factory=dict)


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
