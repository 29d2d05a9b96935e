"""What a connector that offloads knows of a job."""

from collections.abc import Sequence

from attrs import define, field

from ksim.kv_offload.evictions import RequestAccess
from ksim.scheduling.job import Job


@define(eq=False)
class OffloadedJob:
    """vLLM's `RequestOffloadState`.

    `keys` name its chunks, also those whose tokens are not known yet.  The chunks before the `mark` were offered to the
    store.  `blocks` are the GPU blocks that it was scheduled with; `copies` have not ended.  Once it has ended, the
    first `final` tokens may be stored.  `refused` has the store's changes, the mark and the end of its latest offer, if
    there was no room for it.
    """

    job: Job
    keys: Sequence[int]
    mark: int = 0
    blocks: list[int] = field(factory=list)
    copies: set[int] = field(factory=set)
    access: RequestAccess = field(factory=RequestAccess)
    final: int = -1
    closed: bool = False
    refused: tuple[int, int, int] | None = None
