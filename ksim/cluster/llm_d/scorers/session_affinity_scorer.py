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
    _engines: set[int] = field(factory=set, init=False)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        served = self._served.get(cycle.request.session, -1)
        return [1.0 if engine.number == served else 0.0 for engine in engines]

    def sent(self, cycle: Cycle, number: int, profile: str) -> None:
        self._engines.add(number)

    def ended(self, request: Request, number: int) -> None:
        if request.session and number in self._engines:
            self._served[request.session] = number
