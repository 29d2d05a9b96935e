"""A grid of settings: one scenario, run with each combination of their values.

The settings that a study varies: the values of each, listed or between two ends.

Which points a study tries: every combination of the values, or a sample of them.
"""

import json
import math
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from ksim.foundation.errors import ConfigError, KsimError, UnknownName
from ksim.foundation.rng import stream
from ksim.scenario.scenario import Scenario, native, pieces, setting
from ksim.simulation.processes import run_in_processes
from ksim.simulation.simulate import simulate, try_to_build
from ksim.views.result import Result

if TYPE_CHECKING:
    from numpy.typing import NDArray


Settings = Mapping[str, Any]


@frozen
class Axis:
    """A setting, by its dotted key, and the values to try."""

    key: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str, flag: str = "--over") -> "Axis":
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


@frozen
class Outcome:
    """How a run with these `settings` went: its summary, and its scenario with every setting filled in.

    `problem` says why there is no summary; `refused` is true where that was told before any request had ended, as of a
    model that does not fit.  `unserved` says which requests were not served, and why.
    """

    settings: Settings
    summary: Mapping[str, Any] | None = None
    scenario: str = ""
    problem: str = ""
    unserved: str = ""
    refused: bool = False

    @property
    def unserved_share(self) -> float:
        """The share of requests that were rejected or unfinished."""
        if not self.unserved or self.summary is None:
            return 0.0
        return float(self.summary["failed"] + self.summary["unfinished"]) / _requests(self.summary)


def combinations(axes: Sequence[Axis], sample: int | None = None, seed: int = 0) -> list[Settings]:
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


def outcomes(scenario: Scenario, chosen: Sequence[Settings], jobs: int = 1) -> Generator[Outcome, None, None]:
    """Run *scenario* with each of the *chosen* settings in *jobs* processes, with the same outcomes for any number."""
    return run_in_processes(partial(outcome, scenario), chosen, jobs)


def outcome(scenario: Scenario, settings: Settings, play: Callable[..., Result] = simulate) -> Outcome:
    """Run *scenario* with *settings*, or have *play* run it; an error becomes the problem of the outcome."""
    ended: list[None] = []
    try:
        result = play(scenario.with_values(settings), lambda: ended.append(None))
        return Outcome(settings, result.summary, result.scenario, unserved=_unserved(result))
    except KsimError as error:
        return Outcome(settings, scenario=_text(scenario, settings), problem=str(error), refused=not ended)
    except Exception as error:  # in a plug-in, or a bug: the other points still run
        return Outcome(settings, scenario=_text(scenario, settings), problem=f"{type(error).__name__}: {error};"
                       " `ksim run` with these settings shows where")


def unbuildable(scenario: Scenario, chosen: Sequence[Settings]) -> Generator[Outcome | None, None, None]:
    """For each of the *chosen* settings, why it cannot be run, told without running it; None where it can.

    Raises UnknownName for an unknown name, which is a mistake in any grid, unlike a model that does not fit.
    """
    for settings in chosen:
        try:
            try_to_build(scenario.with_values(settings))
        except UnknownName:
            raise
        except KsimError as error:
            yield Outcome(settings, problem=str(error), refused=True)
        else:
            yield None


def value_text(value: Any) -> str:
    """A setting's value, as a person would write it."""
    return json.dumps(value, default=str) if isinstance(value, bool | list | dict) else str(value)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """A short name for each of *keys*: its last word, unless another key ends in the same word."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


def _text(scenario: Scenario, settings: Settings) -> str:
    """*scenario* with *settings* in TOML; "" where there cannot be such a scenario."""
    try:
        return scenario.with_values(settings).to_toml()
    except KsimError:
        return ""


def _unserved(result: Result) -> str:
    """How many requests were not served, and why the first of them was not; "" where all were."""
    summary, reasons = result.summary, result.history.requests.reasons
    left = [f"{summary[status]:,} {word}" for status, word in (("failed", "rejected"), ("unfinished", "unfinished"))
            if summary[status]]
    if not left:
        return ""
    why = f": {next(iter(reasons.values()))}" if reasons else ""
    return f"{' and '.join(left)} of {_requests(summary):,} requests{why}"


def _requests(summary: Mapping[str, Any]) -> int:
    return sum(summary[status] for status in ("completed", "failed", "unfinished"))


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


def points(axes: Sequence[Axis | Range], sample: Sample | None = None, seed: int = 0) -> list[Settings]:
    """Every combination of the values of *axes*, or a *sample* drawn by *seed*; each point once.

    Raises ConfigError for two axes with the same key, and for a range without a sample.
    """
    check_keys([axis.key for axis in axes])
    lists = [axis for axis in axes if isinstance(axis, Axis)]
    ranges = [axis.key for axis in axes if isinstance(axis, Range)]
    if sample is None and ranges:
        raise ConfigError("--over", f"{ranges[0]}: a range needs --sample, such as latin:200; or list the values")
    if sample is None or (sample.kind == RANDOM and not ranges):
        return combinations(lists, sample.count if sample else None, seed)
    shares = _latin(sample.count, len(axes), seed) if sample.kind == LATIN else (
        stream(seed, "random").random((sample.count, len(axes))))
    drawn = [{axis.key: axis.at(share) for axis, share in zip(axes, row, strict=True)} for row in shares.tolist()]
    return list({tuple(map(value_text, settings.values())): settings for settings in drawn}.values())


def replication_seed(seed: int, replication: int) -> int:
    """The seed of a replication of a scenario with *seed*: that itself for replication 0, else derived from both."""
    return int(stream(seed, f"replication {replication}").integers(2**31)) if replication else seed


def _latin(count: int, axes: int, seed: int) -> "NDArray[np.float64]":
    """A Latin hypercube: for each axis, one point in each of *count* equal parts of it, in an order of its own."""
    generator = stream(seed, "latin")
    parts = np.stack([generator.permutation(count) for _ in range(axes)], axis=1)
    return np.asarray((parts + generator.random((count, axes))) / count)
