"""What routers see of engines."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from ksim.cluster.forecast import models_of
from ksim.flow.request import Request
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from tests.cluster.idle import idle_engines


@frozen
class View:
    """What a router may know of an engine."""

    number: int
    outstanding: int
    cached: int
    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    kv_blocks: int = 1000
    block_tokens: int = 16
    scraped_at: float = 0.0
    outstanding_tokens: int = 0
    prefill_tokens: int = 0
    role: str = "both"
    adapters: Mapping[str, str] = field(factory=dict, hash=False)
    tiers: Mapping[str, int] = field(factory=dict, hash=False)

    def adapter_place(self, name: str) -> str:
        return self.adapters.get(name, "")

    def prefix_hit(self, request: Request) -> int:
        return min(self.cached, request.prompt)

    def tier_hits(self, request: Request) -> Mapping[str, int]:
        return self.tiers

    @property
    def truth(self) -> Any:
        return idle_engines()[self.number]


@frozen
class Millisecond:
    """Prefills take a millisecond a token, and steps as many as there are sequences."""

    def prefill(self, tokens: int, before: int) -> float:
        return tokens * 1e-3

    def seconds(self, tokens: int, before: int, decodes: int, cached: int) -> tuple[float, float]:
        return decodes * 1e-3, 0.0


def router_of(choice: str | Choice) -> Any:
    """The router of that name as a cluster has it, with models of the engines' steps."""
    router = plugin("cluster.routers", Choice(choice) if isinstance(choice, str) else choice)
    if getattr(router, "measured", None):
        router.measured(models_of(idle_engines()))
    return router
