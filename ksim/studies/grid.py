"""Combinations of settings of one scenario, each run to its end."""

import json
import math
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from attrs import frozen

from ksim.foundation.errors import ConfigError, KsimError
from ksim.foundation.rng import stream
from ksim.results.result import Result
from ksim.studies.processes import spread
from ksim.studies.scenario import Scenario, setting
from ksim.studies.simulation import simulate

Settings = Mapping[str, Any]


@frozen
class Axis:
    """A setting by its dotted key, and the values it takes."""

    key: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """Parse ``key=value,value`` as of ``--over``, values as ``--set`` has them; raises ConfigError."""
        key, equals, values = (part.strip() for part in text.partition("="))
        if not key or not equals:
            raise ConfigError("--over", f"expected key=value,value, not {text!r}")
        pieces = [piece.strip() for piece in _pieces(key, values)]
        if not all(pieces):
            raise ConfigError("--over", f"{key}: expected values with commas between, not {values!r}")
        if len(set(pieces)) < len(pieces):
            raise ConfigError("--over", f"{key}: the same value comes twice in {values!r}")
        return cls(key, tuple(setting(f"{key}={piece}")[1] for piece in pieces))


@frozen
class Outcome:
    """How the scenario with these settings went: its numbers, and itself with nothing left open.

    `problem` says why it has none, or why they do not count: it was not built, or did not serve all requests.
    """

    settings: Settings
    summary: Mapping[str, Any] | None = None
    scenario: str = ""
    problem: str = ""


def combinations(axes: Sequence[Axis], sample: int | None = None, seed: int = 0) -> list[Settings]:
    """Every combination of the values of *axes*, the last axis fastest, or *sample* of them, drawn by *seed*.

    Raises ConfigError where two axes have the same key.
    """
    keys = [axis.key for axis in axes]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ConfigError("--over", f"{twice[0]} comes twice; name all its values at once")
    shape = [len(axis.values) for axis in axes]
    if sample is None or sample >= math.prod(shape):
        return [dict(zip(keys, values, strict=True)) for values in product(*(axis.values for axis in axes))]
    drawn = np.sort(stream(seed, "sample").choice(math.prod(shape), sample, replace=False))
    places = zip(*np.unravel_index(drawn, shape), strict=True)
    return [{axis.key: axis.values[at] for axis, at in zip(axes, place, strict=True)} for place in places]


def outcomes(scenario: Scenario, chosen: Sequence[Settings], jobs: int = 1) -> Generator[Outcome, None, None]:
    """Run *scenario* with each of the *chosen* settings, in *jobs* processes; the outcomes are the same for any."""
    return spread(partial(outcome, scenario), chosen, jobs)


def outcome(scenario: Scenario, settings: Settings) -> Outcome:
    """Run *scenario* with *settings*; what a user can have caused is a problem, and no error."""
    try:
        result = simulate(scenario.with_values(settings))
    except KsimError as error:
        return Outcome(settings, problem=str(error))
    return Outcome(settings, result.summary, result.scenario, _unserved(result))


def value_text(value: Any) -> str:
    """A setting's value as a person would write it."""
    return json.dumps(value, default=str) if isinstance(value, bool | list | dict) else str(value)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """What to call each of *keys* where there is little room: its last word, if that is no other's too."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


def _pieces(key: str, text: str) -> list[str]:
    """*text* cut at its commas, but for those in quotes and brackets."""
    pieces, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not quote and not depth:
            pieces.append("")
        else:
            pieces[-1] += letter
    if quote or depth:
        raise ConfigError("--over", f"{key}: a quote or bracket is left open in {text!r}")
    return pieces


def _unserved(result: Result) -> str:
    """Which requests were not served, and why the first of them was not; "" where all were."""
    summary, reasons = result.summary, result.history.requests.reasons
    left = [f"{summary[status]:,} {word}" for status, word in (("failed", "rejected"), ("unfinished", "unfinished"))
            if summary[status]]
    if not left:
        return ""
    everything = sum(summary[status] for status in ("completed", "failed", "unfinished"))
    why = f": {next(iter(reasons.values()))}" if reasons else ""
    return f"{' and '.join(left)} of {everything:,} requests{why}"
