"""vLLM's balancer of data-parallel ranks: the engine with the least to do, as of the last statistics."""

from collections.abc import Sequence
from math import floor
from typing import ClassVar, Literal

from attrs import define, field
from attrs.validators import ge, gt

from ksim.cluster.routers import EngineView, V
from ksim.flow.request import Request

__all__ = ["VllmDpBalancer"]


@define(eq=False)
class _Counts:
    """An engine's counts in the last statistics; the balancer adds what it has sent since to those that wait."""

    waiting: int
    running: int
    kv_usage: float


@define
class VllmDpBalancer:
    """Engines publish their counts every `interval` seconds; in between, each request sent counts as one more waiting.

    `rule` "in_flight" is that of vLLM 0.33: the larger of waiting + running and the balancer's own requests, plus
    6 x waiting x what the KV cache's use is above a half; it looks for the least from the next engine on each time, so
    that equals take turns.  "waiting" takes the least 4 x waiting + running, the first of equals, as older releases do.

    `client_count` is how many API servers share the engines: each takes the others to send as much as it does.
    """

    signals: ClassVar[tuple[str, ...]] = ("books", "metrics")
    source: ClassVar[str] = "vllm, v1/engine/core_client.py (DPLBAsyncMPClient); `rule` says of which release"

    rule: Literal["waiting", "in_flight"] = "in_flight"
    interval: float = field(default=0.1, validator=gt(0))
    client_count: int = field(default=1, validator=ge(1))
    scores: Sequence[float] = field(default=(), init=False)
    _counts: dict[int, _Counts] = field(factory=dict, init=False)
    _published: int = field(default=-1, init=False)
    _start: int = field(default=0, init=False)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        published = floor(now / self.interval)
        if published > self._published:
            self._published = published
            self._counts.clear()
        loads = [self._load(engine, self._counts_of(engine)) for engine in engines]
        self.scores = [-load for load in loads]
        chosen = engines[self._first_least(loads)]
        self._counts[chosen.number].waiting += self.client_count
        return chosen

    def _counts_of(self, engine: EngineView) -> _Counts:
        counts = self._counts.get(engine.number)
        if counts is None:
            counts = self._counts[engine.number] = _Counts(engine.waiting, engine.running, engine.kv_usage)
        return counts

    def _load(self, engine: EngineView, counts: _Counts) -> float:
        if self.rule == "waiting":
            return 4 * counts.waiting + counts.running
        load = max(self.client_count * engine.outstanding, counts.waiting + counts.running)
        return load + counts.waiting * 6.0 * max(0.0, counts.kv_usage - 0.5)

    def _first_least(self, loads: Sequence[float]) -> int:
        if self.rule == "waiting":
            return loads.index(min(loads))
        start = self._start % len(loads)
        self._start = start + 1
        turned = [*loads[start:], *loads[:start]]
        return (start + turned.index(min(turned))) % len(loads)
