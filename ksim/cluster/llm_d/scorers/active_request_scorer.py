"""The fewer requests of the router's an engine has, the better."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import ge, le

from ksim.cluster.llm_d.cycle import IN_FLIGHT, Cycle
from ksim.cluster.routers import EngineView

__all__ = ["ActiveRequestScorer"]


@frozen
class ActiveRequestScorer:
    """1 with at most `idle_threshold` requests; else from `max_busy_score` down to 0 for the most.

    Source: llm-d-router, scheduling/scorer/activerequest/active_request.go (October 2026).
    """

    idle_threshold: int = field(default=0, validator=ge(0))
    max_busy_score: float = field(default=1.0, validator=[ge(0), le(1)])
    in_flight_load_producer_name: str = IN_FLIGHT
    request_timeout: str = ""  # without effect, in llm-d too

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        requests = cycle.loads[self.in_flight_load_producer_name].requests
        counts = [requests.get(engine.number, 0) for engine in engines]
        most = max(counts)
        return [1.0 if count <= self.idle_threshold else (most - count) / most * self.max_busy_score
                for count in counts]
