"""A grid of settings: one scenario, run with each combination of their values."""

import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from attrs import frozen

from ksim.foundation.errors import ConfigError, KsimError, UnknownName
from ksim.foundation.rng import stream
from ksim.report.result import Result
from ksim.simulation.processes import run_in_processes
from ksim.simulation.scenario import Scenario, setting
from ksim.simulation.scenario_tables import pieces
from ksim.simulation.simulate import simulate, try_to_build

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
