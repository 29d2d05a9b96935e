"""To the engine with the fewest requests that are not finished; the first of equals."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from ksim.cluster.routers import V
from ksim.flow.request import Request

__all__ = ["LeastOutstanding"]


@frozen
class LeastOutstanding:
    signals: ClassVar[tuple[str, ...]] = ("books",)
    source: ClassVar[str] = "join the shortest queue; nginx's least_conn"

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        return min(engines, key=lambda engine: engine.outstanding)
