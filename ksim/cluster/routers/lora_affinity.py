"""To an engine that has the request's LoRA adapter on its GPUs, else in host memory, unless it has much more to do."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import field, frozen, validators

from ksim.cluster.routers import V
from ksim.flow.request import Request

__all__ = ["LoraAffinity"]

#: Nearer places first.
_PLACES = ("gpu", "memory", "disk", "")


@frozen
class LoraAffinity:
    """Among engines with at most `slack` unfinished requests more than the one with fewest, the adapter's place counts
    first, then how many are unfinished."""

    signals: ClassVar[tuple[str, ...]] = ("books", "metrics")
    source: ClassVar[str] = "ksim"

    slack: int = field(default=8, validator=validators.ge(0))

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        most = min(engine.outstanding for engine in engines) + self.slack
        return min((engine for engine in engines if engine.outstanding <= most),
                   key=lambda engine: (self._distance(engine, request), engine.outstanding))

    @staticmethod
    def _distance(engine: V, request: Request) -> int:
        return _PLACES.index(engine.adapter_place(request.adapter)) if request.adapter else 0
