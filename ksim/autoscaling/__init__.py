"""Autoscalers: how many replicas each pool of a fleet should have.

To add one, add a file with an attrs class that has `decide` and an `interval`.
It is asked every `interval` seconds, from the start of a run on, sees the pools
that it scales, and answers how many replicas it wants of each, and why; None
leaves all as it is:

    @define
    class ByQueue:
        interval: float = 15.0

        def decide(self, seen: Observation) -> Decision | None:
            wanted = {name: max(1, ceil(pool.total("waiting") / 10)) for name, pool in seen.pools.items()}
            return Decision(wanted, "a replica for each 10 requests that wait")

What it may know of an engine is what routers know (ksim/cluster/routers), as
old as they know it.  With the class attribute `passes` true, it also gets each
replica's `load` and its pool's `hit_rate`, which take time to find out.  The
class attribute `source` says whose rule it is.
"""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Protocol

from attrs import frozen


@frozen
class Load:
    """What a replica reports of its last forward pass and of its queue, in requests and tokens, as Dynamo's
    ForwardPassMetrics; `wall` is the pass's seconds, 0 for an idle engine."""

    queued_prefill_tokens: int = 0
    queued_prefill_requests: int = 0
    queued_decode_kv: int = 0
    queued_decode_requests: int = 0
    prefill_tokens: int = 0
    prefill_requests: int = 0
    decode_requests: int = 0
    decode_kv: int = 0
    wall: float = 0.0


@frozen
class ReplicaView:
    """A ready replica as of its last scrape; `kv_usage` is a share of its `kv_tokens`, the tokens its KV cache has.

    `load` is None where nobody asks for it.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    kv_tokens: int = 0
    in_flight_tokens: int = 0
    load: Load | None = None


@frozen
class EngineLimits:
    """What an engine can hold: tokens and requests of a batch, tokens of its KV cache, and of a request's context."""

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 512
    max_kv_tokens: int = 2_000_000
    context_length: int = 32_768


@frozen
class PoolView:
    """A pool: the replicas asked for, those `ready`, and how many are starting or draining.  `cost` is of a replica.

    `arrivals` and the rest are of the time since the last look: requests, their mean tokens, seconds, and shares.
    """

    wanted: int
    ready: Sequence[ReplicaView] = ()
    starting: int = 0
    draining: int = 0
    gpus: int = 1
    gpu: str = ""
    cost: float = 1.0
    limits: EngineLimits = EngineLimits()
    arrivals: int = 0
    input_tokens: float = nan
    output_tokens: float = nan
    ttft: float = nan
    itl: float = nan
    hit_rate: float | None = None
    accept_length: float | None = None

    def total(self, signal: str) -> float:
        """The sum of a signal of the replicas that are ready, such as "waiting"."""
        return float(sum(getattr(replica, signal) for replica in self.ready))


@frozen
class Observation:
    """What an autoscaler sees at `now`, in seconds: its `pools` by name, and the requests `held` at the gateway."""

    now: float
    pools: Mapping[str, PoolView]
    held: int = 0


@frozen
class Decision:
    """The replicas wanted, of each pool that is to change, and the reason in words."""

    replicas: Mapping[str, int]
    reason: str = ""


class Autoscaler(Protocol):
    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        ...

    def decide(self, seen: Observation) -> Decision | None: ...
