"""Keys and values that move beside an engine's steps: into blocks of a job, and out of them."""

from collections.abc import Sequence

from attrs import frozen

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


@frozen(kw_only=True)
class Copy:
    """KV that a connector copies between GPU blocks of `job` and a store; vLLM's `TransferJob`.

    It copies into the blocks if it `loads`, and out of them otherwise.  Copies of an engine are numbered from 0 in the
    order in which they begin.  `chunks` are the places of the store's chunks in the job, and `keys` what the store
    calls them.  The copy moves `tokens` tokens of `blocks`, numbers of GPU blocks in the order of the tokens.  No job
    waits for one that is not `asynchronous`: it ends before a step begins.
    """

    number: int
    job: Job
    loads: bool
    chunks: Sequence[int]
    keys: Sequence[int]
    blocks: Sequence[int]
    tokens: int
    asynchronous: bool = True
