"""What a router sees of an engine."""

from collections.abc import Mapping
from functools import cache
from math import inf
from typing import Any

from attrs import define

from ksim.engine.engine import Engine
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError

__all__ = ["View", "view_class"]

#: The attributes of each signal.
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "books": ("outstanding", "outstanding_tokens", "prefill_tokens"),
    "metrics": ("waiting", "running", "kv_usage", "scraped_at", "adapter_place"),
    "kv_events": ("prefix_hit", "tier_hits"),
    "truth": ("truth",)}


@define(eq=False)
class View:
    """An engine as `ksim.cluster.routers.EngineView` describes it; whoever keeps it up to date sets its fields."""

    number: int
    role: str
    engine: Any
    kv_blocks: int = 0
    block_tokens: int = 0
    outstanding: int = 0
    outstanding_tokens: int = 0
    prefill_tokens: int = 0
    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    scraped_at: float = -inf

    @classmethod
    def of(cls, engine: Any) -> "View":
        """The view of *engine*, of which nothing has been seen yet."""
        if not isinstance(engine, Engine):
            return cls(engine.number, engine.role, engine)
        cache = engine.scheduler.cache
        return cls(engine.number, engine.role, engine, cache.capacity, cache.block_tokens)

    def adapter_place(self, name: str) -> str:
        return str(self.engine.adapter_place(name))

    def prefix_hit(self, request: Request) -> int:
        return int(self.engine.prefix_hit(request))

    def tier_hits(self, request: Request) -> Mapping[str, int]:
        return {}

    @property
    def truth(self) -> Any:
        return self.engine

    def look(self) -> None:
        """See the engine as it is now."""
        if isinstance(self.engine, Engine):
            scheduler = self.engine.scheduler
            self.outstanding, self.scraped_at = self.engine.outstanding, self.engine.env.now
            self.waiting, self.running = len(scheduler.waiting), len(scheduler.running)
            self.kv_usage = scheduler.cache.pool.used / scheduler.cache.capacity


@cache
def view_class(signals: tuple[str, ...]) -> type[View]:
    """The class of views that show only what is of *signals*: what is of others is an error."""
    hidden = {name: property(_complaint(name, signal, signals), lambda view, value: None)
              for signal, names in ATTRIBUTES.items() if signal not in signals for name in names}
    return type("View", (View,), {"__slots__": (), **hidden})


def _complaint(name: str, signal: str, signals: tuple[str, ...]) -> Any:
    def complain(view: View) -> Any:
        raise ConfigError("router", f"reads {name} of engine {view.number}, which is of the signal {signal}, and says"
                                    f" that it goes by {', '.join(signals) or 'none'}; name it in its `signals`")
    return complain
