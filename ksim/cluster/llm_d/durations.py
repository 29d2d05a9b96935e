"""Durations as Kubernetes writes them."""

import re
from typing import Any

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def seconds(duration: Any) -> float:
    """The seconds of a *duration* such as "200ms" or "1m30s"; a number is in seconds already.

    Raises ValueError for anything else.
    """
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return float(duration)
    parts = re.findall(r"(\d+(?:\.\d+)?)(h|ms|us|m|s)", str(duration))
    if not parts or "".join(map("".join, parts)) != str(duration):
        raise ValueError(f"{duration!r} is no duration such as '200ms'")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
