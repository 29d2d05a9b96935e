"""Numbers and the subject of a run, as the report and the plots write them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from math import isfinite
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from attrs import frozen

from ksim.results.numbers import RunNumber, number_of

if TYPE_CHECKING:
    from ksim.flow.events import EngineBuilt

#: Characters in a line of plain text, and in one that nothing limits, such as a file's.
WIDTH, UNLIMITED = 80, 100_000
#: Longer model names are cut at the front, which is usually folders.
_LONGEST = 40
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"))


#: What a plan may minimise, and how it is called.
OBJECTIVES = {"gpus": "GPUs", "usd": "$/h", "joules": "J/output token", "carbon": "g CO2e/h"}


@frozen
class Insight:
    """A sentence.  It is a warning if numbers of the report mislead without it."""

    text: str
    warning: bool = False


#: How bounds are rounded, so that they hold: those that no value is above, and those that none is below.
UP, DOWN = ROUND_CEILING, ROUND_FLOOR


def number(value: float | None, rounding: str = ROUND_HALF_EVEN) -> str:
    """About three significant digits, with separators of thousands; a dash if unknown.

    Bounds have a *rounding*, `UP` or `DOWN`.
    """
    if value is None:
        return "-"
    if isinstance(value, int) or value == 0 or abs(value) >= 100:
        return _rounded(value, 0, rounding)
    return _rounded(value, 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4, rounding)


def written(row: RunNumber, value: float | None) -> str:
    """The *value* of a number in the unit of its title; a dash if unknown."""
    if value is None or row.is_share:
        return percent(value)
    return percent(value / 100) if row.unit == "%" else number(value if row.scale == 1 else row.scale * value)


def listed(summary: Mapping[str, Any], keys: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The titles and values of these numbers of *summary*, below the heading of their group; unknown ones are left out.
    """
    for row in map(number_of, keys):
        if (value := summary.get(row.key)) is not None:
            yield row.brief, written(row, value)


def outwards(low: float, high: float) -> str:
    """An interval, rounded outwards: "31.6 to 37.1"."""
    return f"{number(low, DOWN)} to {number(high, UP)}"


def _rounded(value: float, digits: int, rounding: str, scale: int = 1) -> str:
    """*value* times *scale* with so many *digits* after the point; to the nearest as formats do it."""
    if rounding == ROUND_HALF_EVEN or not isfinite(value):
        return f"{scale * value:,.{digits}f}"
    return f"{(scale * Decimal(repr(float(value)))).quantize(Decimal(1).scaleb(-digits), rounding):,f}"


def endings(summary: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """How many requests ended in which way; ways that none ended in are left out."""
    failed, aborted = sum(pool["num_failed"] for pool in summary.get("pools", {}).values()), summary.get("aborted", 0)
    yield summary["completed"], "requests completed"
    for count, word in ((summary["failed"] - failed - aborted, "rejected"), (failed, "failed"),
                        (aborted, "aborted"), (summary["unfinished"], "unfinished")):
        if count:
            yield count, word


def growing(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """The latencies that grow with the length of a run, as more came than could be served; none of other runs.

    Requests that a gateway holds wait there, and not in the queues of engines.
    """
    if not summary["saturated"]:
        return ()
    return ("ttft", "e2el") if summary.get("held_requests") else ("ttft", "e2el", "queue")


def percent(share: float | None, digits: int = 1, rounding: str = ROUND_HALF_EVEN) -> str:
    """A share in per cent; a dash if unknown.  Bounds have a *rounding*, `UP` or `DOWN`."""
    return "-" if share is None else f"{_rounded(share, digits, rounding, 100)} %"


def measure(value: float, unit: str) -> str:
    """*value* with a unit prefix that leaves one to three digits before the point: 92.8 mJ."""
    scale, prefix = next(((scale, prefix) for scale, prefix in _PREFIXES if abs(value) >= scale), _PREFIXES[-1])
    return f"{number(value / scale if value else 0)} {prefix if value else ''}{unit}"


def subject(labels: Mapping[str, Any], engines: Sequence["EngineBuilt"], rate: float | None = None) -> str:
    """A run in one line, such as "llama-3.1-8b on 8 x H200, TP 2, DP 4, 6.73 requests/s offered"."""
    said = [f"{model_name(labels)} on {hardware(labels, engines)}", *parallelism(engines)]
    return ", ".join([*said, f"{number(rate)} requests/s offered"] if rate is not None else said)


def model_name(labels: Mapping[str, Any]) -> str:
    """The label `model_id`; for the path of a config.json, the name of its folder."""
    path = PurePath(str(labels.get("model_id", "a model")))
    name = path.parent.name if path.name == "config.json" and path.parent.name else str(path)
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST:]}"


def hardware(labels: Mapping[str, Any], engines: Sequence["EngineBuilt"]) -> str:
    """The number and the kind of GPUs."""
    if len(_kinds(engines)) > 1 and any(built.pool for built in engines):
        return f"{sum(built.ranks * built.stages for built in engines)} GPUs"
    gpu = labels.get("gpu") or ", ".join(_kinds(engines)) or "GPU"
    return f"{sum(built.ranks * built.stages for built in engines)} x {gpu}"


def parallelism(engines: Sequence["EngineBuilt"]) -> list[str]:
    """The degrees of tensor, pipeline and data parallelism; the latter two only above 1."""
    if not engines:
        return []
    if pools := list(dict.fromkeys(built.pool for built in engines if built.pool)):
        return [f"{pool}: {_copies([built for built in engines if built.pool == pool], len(_kinds(engines)) > 1)}"
                for pool in pools]
    ranks, stages = max(built.ranks for built in engines), max(built.stages for built in engines)
    sizes = (("PP", stages), ("DP", len(engines)))
    return [f"TP {ranks}", *(f"{name} {size}" for name, size in sizes if size > 1)]


def _kinds(engines: Sequence["EngineBuilt"]) -> list[str]:
    return list(dict.fromkeys(built.gpu for built in engines))


def _copies(engines: Sequence["EngineBuilt"], named: bool) -> str:
    """The engines of a pool: their number, the parallelism of each and, if *named*, their GPU."""
    ranks, stages = max(built.ranks for built in engines), max(built.stages for built in engines)
    each = f"TP {ranks}, PP {stages}" if stages > 1 else f"TP {ranks}"
    return f"{len(engines)} x {each}{f' on {engines[0].gpu}' if named else ''}"
