"""1 for the engine that served the session's turn before, 0 for all others."""

from collections.abc import Sequence

from attrs import define, field

from ksim.cluster.llm_d.cycle import Cycle
from ksim.cluster.routers import EngineView
from ksim.flow.request import Request

__all__ = ["SessionAffinityScorer"]


@define(eq=False)
class SessionAffinityScorer:
    """The client sends back the token that the end of an answer came with, which names its engine.

    Source: llm-d-router, scheduling/scorer/sessionaffinity/session_affinity.go (May 2026: x-session-token).
    """

    _served: dict[str, int] = field(factory=dict, init=False)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        served = self._served.get(cycle.request.session, -1)
        return [1.0 if engine.number == served else 0.0 for engine in engines]

    def ended(self, request: Request, number: int) -> None:
        if request.session:
            self._served[request.session] = number
