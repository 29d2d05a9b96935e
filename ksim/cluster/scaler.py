"""What autoscalers see of a fleet while it serves, and what becomes of their decisions.

They see engines as routers do: what these report of themselves is as old as the last scrape, and latencies are those of
answers that have passed through the gateway.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heappop
from math import nan
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from attrs import astuple, define, evolve, field, fields, frozen

from ksim.autoscaling import Autoscaler, Load, Observation, PoolView, ReplicaView
from ksim.cluster.cluster import Cluster
from ksim.cluster.replicas import DRAINING, READY, STARTING, Replica, ScaledPool
from ksim.cluster.signals import View
from ksim.flow.events import Scaled
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError

__all__ = ["Scaler", "Tally"]

#: Seconds after which schedules repeat.
_WEEK = 7 * 86_400.0


@frozen
class Totals:
    """Requests that have come, with their tokens; that have ended, with theirs; and the seconds to first tokens, and
    from one token to the next, of so many."""

    arrivals: int = 0
    input_tokens: int = 0
    ended: int = 0
    output_tokens: int = 0
    begun: int = 0
    ttft: float = 0.0
    gaps: int = 0
    itl: float = 0.0

    def since(self, before: "Totals") -> "Totals":
        """What has been added to *before*."""
        return Totals(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))

    def means(self) -> dict[str, Any]:
        """The fields of a `PoolView`."""
        return {"arrivals": self.arrivals, "input_tokens": _mean(self.input_tokens, self.arrivals),
                "output_tokens": _mean(self.output_tokens, self.ended), "ttft": _mean(self.ttft, self.begun),
                "itl": _mean(self.itl, self.gaps)}


def _mean(total: float, count: int) -> float:
    return total / count if count else nan


@define(eq=False)
class Tally:
    """Counts requests and their latencies at the gateway of a fleet that is scaled, as its clients see them.

    A request that goes on elsewhere is one.  One that fails counts with the tokens that its client had, or not at all
    if it had none, as in Dynamo's frontend (lib/llm/src/http/service/metrics.rs, `ResponseMetricCollector`); when it
    had the last of them is not kept, so the times between them are left out.  Of a split request, clients have only
    what the decode engine sends: `prefill` are the numbers of the others.
    """

    signals: ClassVar[tuple[str, ...]] = ("books", "metrics")
    totals: Totals = Totals()
    prefill: Collection[int] = ()
    _first_tokens: dict[int, float] = field(factory=dict, init=False)
    #: Of requests that engines have lost: when last, the tokens that clients had by then, and whether they failed.
    _lost: dict[int, tuple[float, int, bool]] = field(factory=dict, init=False)

    def arrived(self, request: Request) -> None:
        now = self.totals
        self.totals = evolve(now, arrivals=now.arrivals + 1, input_tokens=now.input_tokens + request.prompt)

    def on_first_token(self, request: Request, engine: int, time: float) -> None:
        now = self.totals
        if request.id not in self._first_tokens and engine not in self.prefill:
            self._first_tokens[request.id] = time
            self.totals = evolve(now, begun=now.begun + 1, ttft=now.ttft + time - request.arrival)

    def on_end(self, request: Request, engine: int, time: float) -> None:
        lost_at, had, failed = self._lost.get(request.id, (None, 0, False))
        if engine in self.prefill or (lost_at == time and not failed):
            return
        self._lost.pop(request.id, None)
        now, first = self.totals, self._first_tokens.pop(request.id, time)
        if not failed:
            gaps = max(0, had + request.output - 1)
            now = evolve(now, gaps=now.gaps + gaps, itl=now.itl + (time - first if gaps else 0.0))
            had += request.output
        self.totals = evolve(now, ended=now.ended + 1, output_tokens=now.output_tokens + had) if had else now

    def lost(self, request: int, time: float, tokens: int, failed: bool) -> None:
        """Take note that engines have dropped *request* at *time*, of which its client has so many more *tokens*.

        It has *failed*, or goes on elsewhere.  `on_end` will be called for that time, too, unless no engine had it.
        """
        _, before, _ = self._lost.get(request, (time, 0, False))
        self._lost[request] = time, before + tokens, failed


@define(eq=False)
class Scaler:
    """Asks `autoscaler` every so often, and has `pools` follow it, until nothing is left to serve.

    `kinds` has what does not change of each pool: its GPUs and its engines' limits.
    """

    autoscaler: Autoscaler
    pools: Mapping[str, ScaledPool]
    kinds: Mapping[str, PoolView]
    cluster: Cluster
    tally: Tally
    views: Mapping[int, View]
    _before: Totals = field(factory=Totals, init=False)
    #: When requests were admitted since the last look, and the shares of their prompts that were cached, if it asks.
    _admissions: list[tuple[float, float]] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        for view in self.views.values() if self._asks else ():
            if view.role != "decode":  # which finds the KV that it is sent cached
                view.engine.observer.admissions.append(self._admissions)

    def run(self, over: Callable[[], bool]) -> Any:
        """The process that asks; it raises ConfigError where requests would wait for ever."""
        env = self.cluster.env
        served = env.now
        while True:
            yield env.timeout(self.autoscaler.interval)
            if over():
                return
            self.decide()
            if not self._forsaken:
                served = env.now
            elif env.now - served > _WEEK:
                raise ConfigError("autoscaler", f"has asked for no replica of {', '.join(self.pools)} for a week, and"
                                                f" requests wait since {served:,.0f} s; have it keep one")

    @property
    def _forsaken(self) -> bool:
        """Whether requests wait for replicas, of which none is wanted."""
        gateway = self.cluster.gateway
        return gateway is not None and gateway.held > 0 and not any(pool.wanted for pool in self.pools.values())

    def decide(self) -> None:
        """Ask once."""
        seen = self.look()
        decision = self.autoscaler.decide(seen)
        for name, replicas in (decision.replicas if decision else {}).items():
            pool = self.pools[name]
            if replicas != pool.wanted:
                assert decision is not None, "it wants replicas"
                self.cluster.log.add(Scaled(seen.now, name, pool.wanted, replicas, decision.reason,
                                            self._seen(seen.pools[name], seen.held)))
                pool.scale(replicas)

    def _seen(self, pool: PoolView, held: int) -> dict[str, float]:
        """What it saw of *pool*, for results."""
        return {"ready": len(pool.ready), "starting": pool.starting, "draining": pool.draining,
                "running": pool.total("running"), "waiting": pool.total("waiting"), "held": held,
                "kv_usage": _mean(pool.total("kv_usage"), len(pool.ready)),
                "request_rate": pool.arrivals / self.autoscaler.interval, "ttft_s": pool.ttft}

    def look(self) -> Observation:
        """What there is to see now."""
        now, gateway = self.cluster.env.now, self.cluster.gateway
        self.cluster.sight.refresh(now, all_of_them=True)
        latest = self.tally.totals.since(self._before).means()
        self._before = self.tally.totals
        if self._asks:
            latest["hit_rate"] = self._hit_rate(now)
        seen = {name: evolve(self.kinds[name], wanted=pool.wanted,
                             ready=[self._replica(replica, now) for replica in pool.those(READY)],
                             starting=len(pool.those(STARTING)) + pool.pending, draining=len(pool.those(DRAINING)),
                             **latest)
                for name, pool in self.pools.items()}
        return Observation(now, seen, gateway.held if gateway else 0)

    @property
    def _asks(self) -> bool:
        return bool(getattr(self.autoscaler, "passes", False))

    def _hit_rate(self, now: float) -> float | None:
        """The mean share of their prompts that requests admitted since the last look found cached; None if none was.

        Each request counts alike, as in the histogram of Dynamo's router (`router_kv_hit_rate`), of whose sum and count
        the planner takes the quotient.  vLLM's prefix_cache_hits and prefix_cache_queries count tokens instead.
        """
        shares, admissions = list[float](), self._admissions
        while admissions and admissions[0][0] <= now:
            shares.append(heappop(admissions)[1])
        return float(np.mean(shares)) if shares else None

    def _replica(self, replica: Replica, now: float) -> ReplicaView:
        engines = [self.views[number] for number in replica.engines]
        load = _summed([_load(view, now) for view in engines]) if self._asks else None
        return ReplicaView(sum(view.running for view in engines), sum(view.waiting for view in engines),
                           sum(view.kv_usage for view in engines) / len(engines),
                           sum(view.kv_blocks * view.block_tokens for view in engines),
                           sum(view.outstanding_tokens for view in engines), load)


def _load(view: View, now: float) -> Load:
    """What the engine of *view* reports of its last pass, and of the prompts that wait: one that is idle, nothing."""
    if not (view.running or view.waiting):
        return Load()
    queue = Load(queued_prefill_tokens=view.prefill_tokens if view.waiting else 0, queued_prefill_requests=view.waiting)
    if (found := view.engine.last_pass(now)) is None:
        return queue
    batch, seconds = found
    decodes, prompts = batch.contexts, sum(tokens for tokens, _ in batch.chunks)
    count = len(decodes.offsets)
    return evolve(queue, queued_prefill_tokens=max(0, queue.queued_prefill_tokens - prompts), prefill_tokens=prompts,
                  prefill_requests=len(batch.chunks), decode_requests=count,
                  decode_kv=decodes.offsets.sum + count * decodes.shift, wall=seconds)


def _summed(loads: Sequence[Load]) -> Load:
    """The load of a replica with several engines, whose passes go side by side."""
    if len(loads) == 1:
        return loads[0]
    longest = max(loads, key=attrgetter("wall"))
    return evolve(longest, **{each.name: sum(getattr(load, each.name) for load in loads)
                              for each in fields(Load) if each.name != "wall"})
