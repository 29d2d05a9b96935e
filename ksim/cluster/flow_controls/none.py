"""None: each request goes to its engine as it comes, which is what routers without flow control do."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import ClassVar

from attrs import frozen

from ksim.cluster.routers import EngineView
from ksim.flow.request import Request

__all__ = ["NoFlowControl"]


@frozen
class NoFlowControl:
    """Refuses nobody and holds nobody back."""

    source: ClassVar[str] = "llm-d-router without the feature gate flowControl"
    signals: ClassVar[tuple[str, ...]] = ()
    default_request_ttl: ClassVar[float] = inf

    def refusal(self, request: Request, engines: Sequence[EngineView], held: int, now: float) -> str:
        return ""

    def flow(self, request: Request) -> str:
        return ""

    def pick(self, heads: Mapping[str, Request]) -> str:
        return ""

    def ready(self, engines: Sequence[EngineView], now: float) -> bool:
        return True

    def sent(self, request: Request, engine_number: int, now: float) -> None:
        pass
