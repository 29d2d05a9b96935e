"""To the engine that has most of the prompt cached, less a penalty for its load."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import field, frozen, validators

from ksim.cluster.routers import V
from ksim.flow.request import Request

__all__ = ["PrefixAware"]


@frozen
class PrefixAware:
    """One unfinished request weighs as much as `load_tokens` cached tokens."""

    signals: ClassVar[tuple[str, ...]] = ("books", "kv_events")
    source: ClassVar[str] = "ksim"

    load_tokens: float = field(default=256.0, validator=validators.ge(0))

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        return max(engines, key=lambda e: e.prefix_hit(request) - self.load_tokens * e.outstanding)
