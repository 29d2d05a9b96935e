"""The signals that a router goes by, and the view of an engine that shows them."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import inf
from typing import Any

from attrs import define, field

from ksim.engine.engine import Engine
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError
from ksim.specs.settings import SignalSettings

__all__ = ["ATTRIBUTES", "SIGNALS", "View", "check_signals", "late_events", "signals_of", "together", "view_class",
           "watches"]


#: What a router may name, and what one that names nothing is taken to need.
SIGNALS = ("books", "metrics", "kv_events", "truth")
USUAL = ("books", "metrics", "kv_events")


def signals_of(router: Any, key: str = "router") -> tuple[str, ...]:
    """The signals that *router* says it goes by; raises ConfigError for what is none, in the words of *key*."""
    name = f"{key} {type(router).__name__}"
    if hasattr(router, "blind"):
        raise ConfigError(name, "has the attribute `blind`, which is gone; write `signals = ()` if it does not look at"
                                " engines")
    named = getattr(router, "signals", USUAL)
    signals = (named,) if isinstance(named, str) else tuple(named)
    if strangers := [signal for signal in signals if signal not in SIGNALS]:
        raise ConfigError(name, f"goes by the signal {strangers[0]!r}; there are {', '.join(SIGNALS)}")
    return signals


def together(parts: Iterable[Any], method: str) -> Callable[..., None] | None:
    """A function that calls *method* of those of *parts* that have it; None if none does."""
    hooks = [getattr(part, method) for part in parts if getattr(part, method, None)]

    def call(*args: Any) -> None:
        for hook in hooks:
            hook(*args)

    return call if hooks else None


def check_signals(router: Any, name: str, settings: SignalSettings, key: str = "router") -> None:
    """Raise ConfigError if *router*, which a scenario calls *name*, needs what its *settings* turn off."""
    for signal in ("metrics", "kv_events"):
        if signal in signals_of(router, key) and not getattr(settings, signal):
            raise ConfigError(f"signals.{signal}", f"is false, and {key} {name} goes by {signal}; turn it on, or choose"
                                                   f" another (`ksim list {key}s`)")


def watches(signals: tuple[str, ...], settings: SignalSettings) -> bool:
    """Whether a router that goes by *signals* looks at engines themselves when it chooses."""
    return "truth" in signals or ("kv_events" in signals and settings.exact_events)


def late_events(signals: tuple[str, ...], settings: SignalSettings) -> bool:
    """Whether it reads KV events that come late, or may be lost."""
    return "kv_events" in signals and not settings.exact_events


#: The attributes of each signal.
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "books": ("outstanding", "outstanding_tokens", "prefill_tokens"),
    "metrics": ("waiting", "running", "kv_usage", "scraped_at", "adapter_place"),
    "kv_events": ("prefix_hit", "tier_hits"),
    "truth": ("truth",)}


@define(eq=False, repr=False)
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

    def __repr__(self) -> str:
        """The number and the role; what the router may not read raises ConfigError."""
        return f"View(number={self.number!r}, role={self.role!r})"

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
