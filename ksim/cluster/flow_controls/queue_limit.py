"""A bounded queue at the gateway while the engines are saturated, first come, first served, as in llm-d."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import define, field
from attrs.validators import ge, gt, le

from ksim.cluster.routers import EngineView
from ksim.flow.request import Request
from ksim.foundation.units import Seconds, quantity

__all__ = ["QueueLimit"]


@define
class QueueLimit:
    """Requests wait while the engines' mean saturation is 1 or more: an engine's is the larger of its queue over
    `queue_depth_threshold` and its KV usage over `kv_cache_util_threshold`.

    One whose metrics are older than `metrics_staleness_threshold` counts as saturated.  A request is refused if
    `max_requests` wait already, and after `default_request_ttl` in the queue.

    With `in_flight_credit`, requests that the gateway has sent and the last scrape does not show count as queued, as
    in llm-d where an in-flight-load producer is configured.
    """

    source: ClassVar[str] = "llm-d-router pkg/epp/flowcontrol, utilization-detector (August 2026)"
    signals: ClassVar[tuple[str, ...]] = ("books", "metrics")
    queue_depth_threshold: int = field(default=5, validator=gt(0))
    kv_cache_util_threshold: float = field(default=0.8, validator=(gt(0), le(1)))
    metrics_staleness_threshold: Seconds = field(default=0.2, converter=quantity, validator=gt(0))
    max_requests: int = field(default=5000, validator=ge(0))
    default_request_ttl: Seconds = field(default=60.0, converter=quantity, validator=gt(0))
    in_flight_credit: bool = False

    def refusal(self, request: Request, engines: Sequence[EngineView], held: int, now: float) -> str:
        if held < self.max_requests or (not held and self.ready(engines, now)):
            return ""
        return f"{held} requests wait at the gateway already, and at most {self.max_requests} may"

    def flow(self, request: Request) -> str:
        return ""

    def pick(self, heads: Mapping[str, Request]) -> str:
        return ""

    def ready(self, engines: Sequence[EngineView], now: float) -> bool:
        return sum(self.saturation(engine, now) for engine in engines) < len(engines)

    def sent(self, request: Request, engine_number: int, now: float) -> None:
        """Forget it: only metrics count."""

    def saturation(self, engine: EngineView, now: float) -> float:
        """The saturation of *engine*; from 1 on, it should get no more."""
        if now - engine.scraped_at > self.metrics_staleness_threshold:
            return 1.0
        queued = engine.waiting
        if self.in_flight_credit:
            queued += max(0, engine.outstanding - engine.waiting - engine.running)
        return max(queued / self.queue_depth_threshold, engine.kv_usage / self.kv_cache_util_threshold)
