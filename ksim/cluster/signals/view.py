"""What a router sees of an engine."""

from collections.abc import Callable, Mapping
from functools import cache
from math import inf
from typing import Any

from attrs import define, field

from ksim.engine.engine import Engine
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError

__all__ = ["View", "view_class", "ATTRIBUTES"]

#: The attributes of each signal.
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "books": ("outstanding", "outstanding_tokens", "prefill_tokens"),
    "metrics": ("waiting", "running", "kv_usage", "scraped_at", "adapter_place"),
    "kv_events": ("prefix_hit", "tier_hits"),
    "truth": ("truth",)}


@define(eq=False)
class View:
    """An engine as `ksim.cluster.routers.EngineView` describes it; what it shows is set by `EngineViews`.

    `find_hit` and `find_tiers` look a request up.  `hit` is what the router last learned by that, or -1.
    """

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
    adapters: Mapping[str, str] = field(factory=dict)
    hit: int = -1
    find_hit: Callable[[Request], int] = field(default=lambda request: 0)
    find_tiers: Callable[[Request], Mapping[str, int]] = field(default=lambda request: {})

    @classmethod
    def of(cls, engine: Any) -> "View":
        """The view of *engine*, of which nothing has been seen yet."""
        if not isinstance(engine, Engine):
            return cls(engine.number, engine.role, engine)
        cache = engine.scheduler.cache
        return cls(engine.number, engine.role, engine, cache.capacity, cache.block_tokens)

    def adapter_place(self, name: str) -> str:
        return self.adapters.get(name, "")

    def prefix_hit(self, request: Request) -> int:
        self.hit = hit = self.find_hit(request)
        return hit

    def tier_hits(self, request: Request) -> Mapping[str, int]:
        return self.find_tiers(request)

    @property
    def truth(self) -> Any:
        return self.engine


@cache
def view_class(signals: tuple[str, ...]) -> type[View]:
    """The class of views that show only what is of *signals*: what is of others is an error."""
    hidden = {name: property(_complaint(name, signal, signals), _ignore)
              for signal, names in ATTRIBUTES.items() if signal not in signals for name in names}
    return type("View", (View,), {"__slots__": (), **hidden})


def _complaint(name: str, signal: str, signals: tuple[str, ...]) -> Callable[[View], Any]:
    def complain(view: View) -> Any:
        raise ConfigError("router", f"reads {name} of engine {view.number}, which is of the signal {signal}, and says"
                                    f" that it goes by {', '.join(signals) or 'none'}; name it in its `signals`")
    return complain


def _ignore(view: View, value: Any) -> None:
    """Set nothing: nobody may read it."""
