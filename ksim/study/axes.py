"""The settings that a study varies: the values of each, listed or between two ends."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from ksim.foundation.errors import ConfigError
from ksim.simulation.scenario_tables import native
from ksim.study.grid import Axis, key_and_values

_END = r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\W\d][\w/%*^.-]*|%)?\s*"
_RANGE = re.compile(rf"{_END}:{_END}(?::\s*(log|linear)\s*)?")


@frozen
class Range:
    """A setting, by its dotted key, and the ends between which its values lie, both included.

    Values are `whole` numbers where both ends are, spread evenly, or by their logarithms (`log`).  With a `unit` they
    are texts, such as "450 W".
    """

    key: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    unit: str = ""

    def at(self, share: float) -> Any:
        """The value at *share*, from 0 to 1 without 1, of the way from the low to the high end."""
        return self.shown(self.number(share))

    def number(self, share: float) -> float:
        """The same without its unit."""
        high = self.high + self.whole
        value = self.low * (high / self.low) ** share if self.log else self.low + share * (high - self.low)
        return int(min(math.floor(value), self.high)) if self.whole else float(f"{value:.6g}")

    def shown(self, value: float) -> Any:
        """*value* as a setting, with the unit if there is one."""
        number = int(value) if self.whole else float(value)
        return f"{number} {self.unit}" if self.unit else number

    def __str__(self) -> str:
        return f"{self.shown(self.low)}:{self.shown(self.high)}{':log' if self.log else ''}"


def parse(text: str, flag: str = "--over") -> Axis | Range:
    """Parse ``key=value,value`` or ``key=low:high[:log]`` as *flag* takes it; raises ConfigError."""
    key, values = key_and_values(text, flag)
    match = _RANGE.fullmatch(values)
    return Axis.parse(text, flag) if match is None else _range(key, flag, *match.groups())


def axes_of(over: Mapping[str, Any] | Iterable[str]) -> list[Axis | Range]:
    """The axes of a Python call: texts as `parse` takes them, or values by key.

    The values of a key are a list, or one text as after the ``=`` of ``--over``, such as "16:256:log".
    """
    if isinstance(over, str):
        return [parse(over, "over")]
    if not isinstance(over, Mapping):
        return [parse(text) for text in over]
    return [parse(f"{key}={values}", "over") if isinstance(values, str) else Axis(key, tuple(native(list(values), key)))
            for key, values in over.items()]


def _range(key: str, flag: str, *parts: str | None) -> Range:
    """The range whose *parts* are its ends, each with its unit, and the word for its scale."""
    low, first, high, second, scale = parts
    assert low is not None and high is not None, "the pattern has both"
    made = Range(key, float(low), float(high), scale == "log", _whole(low) and _whole(high), second or first or "")
    if first and first != second:
        raise ConfigError(flag, f"{key}: both ends of a range have the same unit, or the high end alone has one")
    if not made.low < made.high:
        raise ConfigError(flag, f"{key}: a range goes from low to high, and {high} is not above {low}")
    if made.log and made.low <= 0:
        raise ConfigError(flag, f"{key}: a range by logarithms begins above 0, not at {low}")
    return made


def _whole(text: str) -> bool:
    return text.lstrip("+-").isdecimal()
