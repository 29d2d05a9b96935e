"""The fewer prompt tokens are in flight to an engine, with those of the request that it lacks, the better."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import gt

from ksim.cluster.llm_d.cycle import IN_FLIGHT, Cycle
from ksim.cluster.routers import EngineView

__all__ = ["TokenLoadScorer"]


@frozen
class TokenLoadScorer:
    """1 without any, 0 from `queue_threshold_tokens` on.

    Source: llm-d-router, scheduling/scorer/tokenload/token_load.go (October 2026).
    """

    queue_threshold_tokens: int = field(default=4_194_304, validator=gt(0))
    in_flight_load_producer_name: str = IN_FLIGHT

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        in_flight, most = cycle.loads[self.in_flight_load_producer_name], self.queue_threshold_tokens
        tokens, added = in_flight.tokens, in_flight.added
        loads = [tokens.get(engine.number, 0) + added[engine.number] for engine in engines]
        return [1.0 - (load if load < most else most) / most for load in loads]
