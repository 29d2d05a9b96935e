"""The settings that a study varies: the values of each, and which points it tries.

Values are listed (`SettingValues`), or lie between two ends (`Range`).  Points are every combination of them, or a
`Sample`.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from ksim.foundation.errors import ConfigError
from ksim.foundation.rng import stream
from ksim.scenario.files import native
from ksim.scenario.scenario import pieces, setting

if TYPE_CHECKING:
    from numpy.typing import NDArray


Settings = Mapping[str, Any]


@frozen
class SettingValues:
    """A setting, by its dotted key, and the values to try."""

    key: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str, flag: str = "--over") -> "SettingValues":
        """Parse ``key=value,value`` as *flag* takes it, with values as for ``--set``; raises ConfigError."""
        key, values = key_and_values(text, flag)
        texts = [piece.strip() for piece in pieces(flag, key, values)]
        if not all(texts):
            raise ConfigError(flag, f"{key}: expected values with commas between, not {values!r}")
        if len(set(texts)) < len(texts):
            raise ConfigError(flag, f"{key}: the same value comes twice in {values!r}")
        return cls(key, tuple(setting(f"{key}={piece}")[1] for piece in texts))

    def at(self, share: float) -> Any:
        """The value at *share* of the list, from 0 to 1 without 1."""
        return self.values[int(share * len(self.values))]


def key_and_values(text: str, flag: str) -> tuple[str, str]:
    """The two sides of ``key=values``; raises ConfigError that names *flag*."""
    key, equals, values = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise ConfigError(flag, f"expected key=value,value, not {text!r}")
    return key, values


def combinations(axes: Sequence[SettingValues], sample: int | None = None, seed: int = 0) -> list[Settings]:
    """Every combination of the values of *axes*, the last axis varying fastest, or *sample* of them, drawn by *seed*.

    Raises ConfigError for two axes with the same key.
    """
    check_keys([axis.key for axis in axes])
    keys, shape = [axis.key for axis in axes], [len(axis.values) for axis in axes]
    if sample is None or sample >= math.prod(shape):
        return [dict(zip(keys, values, strict=True)) for values in product(*(axis.values for axis in axes))]
    drawn = np.sort(stream(seed, "sample").choice(math.prod(shape), sample, replace=False))
    places = zip(*np.unravel_index(drawn, shape), strict=True)
    return [{axis.key: axis.values[at] for axis, at in zip(axes, place, strict=True)} for place in places]


def check_keys(keys: Sequence[str], flag: str = "--over") -> None:
    """Raise ConfigError for a key that comes twice."""
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ConfigError(flag, f"{twice[0]} comes twice; name all its values at once")


def value_text(value: Any) -> str:
    """A setting's value, as a person would write it."""
    return json.dumps(value, default=str) if isinstance(value, bool | list | dict) else str(value)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """A short name for each of *keys*: its last word, unless another key ends in the same word."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


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


def parse(text: str, flag: str = "--over") -> SettingValues | Range:
    """Parse ``key=value,value`` or ``key=low:high[:log]`` as *flag* takes it; raises ConfigError."""
    key, values = key_and_values(text, flag)
    match = _RANGE.fullmatch(values)
    return SettingValues.parse(text, flag) if match is None else _range(key, flag, *match.groups())


def axes_of(over: Mapping[str, Any] | Iterable[str]) -> list[SettingValues | Range]:
    """The axes of a Python call: texts as `parse` takes them, or values by key.

    The values of a key are a list, or one text as after the ``=`` of ``--over``, such as "16:256:log".
    """
    if isinstance(over, str):
        return [parse(over, "over")]
    if not isinstance(over, Mapping):
        return [parse(text) for text in over]
    return [parse(f"{key}={values}", "over") if isinstance(values, str) else
            SettingValues(key, tuple(native(list(values), key))) for key, values in over.items()]


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


LATIN, RANDOM = "latin", "random"


@frozen
class Sample:
    """So many points: drawn one by one (`random`), or such that each axis is covered evenly (`latin` hypercube)."""

    kind: str
    count: int

    @classmethod
    def parse(cls, text: str) -> "Sample":
        """Parse ``latin:200`` or ``random:50`` as of ``--sample``; raises ConfigError."""
        kind, _, count = text.partition(":")
        if kind not in (LATIN, RANDOM) or not count.isdecimal() or not int(count):
            raise ConfigError("--sample", f"expected latin:COUNT or random:COUNT, such as latin:200, not {text!r}")
        return cls(kind, int(count))

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}"


def points(axes: Sequence[SettingValues | Range], sample: Sample | None = None, seed: int = 0) -> list[Settings]:
    """Every combination of the values of *axes*, or a *sample* drawn by *seed*; each point once.

    Raises ConfigError for two axes with the same key, and for a range without a sample.
    """
    check_keys([axis.key for axis in axes])
    lists = [axis for axis in axes if isinstance(axis, SettingValues)]
    ranges = [axis.key for axis in axes if isinstance(axis, Range)]
    if sample is None and ranges:
        raise ConfigError("--over", f"{ranges[0]}: a range needs --sample, such as latin:200; or list the values")
    if sample is None or (sample.kind == RANDOM and not ranges):
        return combinations(lists, sample.count if sample else None, seed)
    shares = _latin(sample.count, len(axes), seed) if sample.kind == LATIN else (
        stream(seed, "random").random((sample.count, len(axes))))
    drawn = [{axis.key: axis.at(share) for axis, share in zip(axes, row, strict=True)} for row in shares.tolist()]
    return list({tuple(map(value_text, settings.values())): settings for settings in drawn}.values())


def _latin(count: int, axes: int, seed: int) -> "NDArray[np.float64]":
    """A Latin hypercube: for each axis, one point in each of *count* equal parts of it, in an order of its own."""
    generator = stream(seed, "latin")
    parts = np.stack([generator.permutation(count) for _ in range(axes)], axis=1)
    return np.asarray((parts + generator.random((count, axes))) / count)
