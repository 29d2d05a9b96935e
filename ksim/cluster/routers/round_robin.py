"""One after the other, whatever they have to do."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import define

from ksim.cluster.routers import V
from ksim.flow.request import Request

__all__ = ["RoundRobin"]


@define
class RoundRobin:
    signals: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = "nginx's default"

    _turn: int = 0

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        engine = engines[self._turn % len(engines)]
        self._turn += 1
        return engine
