"""Which signals a router goes by, and whether a scenario has them."""

from typing import Any

from ksim.foundation.errors import ConfigError
from ksim.specs.settings import SignalSettings

__all__ = ["SIGNALS", "check_signals", "late_events", "signals_of", "watches"]

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
