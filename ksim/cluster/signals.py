"""Which signals a router goes by."""

from typing import Any

from ksim.foundation.errors import ConfigError

__all__ = ["SIGNALS", "signals_of"]

#: What a router may name, and what one that names nothing is taken to need.
SIGNALS = ("books", "metrics", "kv_events", "truth")
USUAL = ("books", "metrics", "kv_events")


def signals_of(router: Any, key: str = "router") -> tuple[str, ...]:
    """The signals that *router* says it goes by; raises ConfigError for what is none, in the words of *key*."""
    name = f"{key} {type(router).__name__}"
    if hasattr(router, "blind"):
        raise ConfigError(name, "has the attribute `blind`, which is gone; write `signals = ()` if it does not look at"
                                " engines")
    signals = tuple(getattr(router, "signals", USUAL))
    if strangers := [signal for signal in signals if signal not in SIGNALS]:
        raise ConfigError(name, f"goes by the signal {strangers[0]!r}; there are {', '.join(SIGNALS)}")
    return signals
