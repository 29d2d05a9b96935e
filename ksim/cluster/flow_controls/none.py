"""None: each request goes to its engine as it comes, which is what routers without flow control do."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from ksim.cluster.flow_controls import NoQueue
from ksim.cluster.routers import EngineView
from ksim.flow.request import Request

__all__ = ["NoFlowControl"]


@frozen
class NoFlowControl(NoQueue):
    """Refuses nobody and holds nobody back."""

    source: ClassVar[str] = "llm-d-router without the feature gate flowControl"
    signals: ClassVar[tuple[str, ...]] = ()

    def refusal(self, request: Request, engines: Sequence[EngineView], held: int, now: float) -> str:
        return ""

    def sent(self, request: Request, engine_number: int, now: float) -> None:
        pass
