"""Two runs as wholes on the screen: the settings that differ, and throughput, latency, cache, energy and cost."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from ksim.cli.screen import table
from ksim.report.comparison import Whole, changed
from ksim.report.wording import number, percent

#: The numbers that are shown, by what they are about; those that are null in both runs are left out.
NUMBERS = {
    "requests": ("completed", "failed", "unfinished", "duration"),
    "throughput": ("request_throughput", "output_throughput", "total_token_throughput", "request_goodput",
                   "slo_attainment"),
    "latency": ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_e2el_ms", "p99_e2el_ms"),
    "cache": ("prefix_cache_hit_rate", "kv_cache_usage_mean", "preemptions"),
    "GPUs": ("gpus", "gpu_busy_share", "mfu", "mbu"),
    "energy": ("energy_joules", "joules_per_output_token", "average_watts"),
    "cost": ("energy_dollars", "gpu_dollars", "dollars_per_million_output_tokens", "carbon_grams"),
}
_SHARES = {"slo_attainment", "prefix_cache_hit_rate", "kv_cache_usage_mean", "gpu_busy_share", "mfu", "mbu"}
#: From this multiple on, and below its inverse, a change is shown as a multiple.
_MULTIPLE = 2.0
#: Characters of a setting, at most.
_LONGEST = 60


def content(one: Whole, other: Whole) -> dict[str, Any]:
    """The settings that differ and all numbers, as JSON has them: pairs of the first run's and the second's."""
    known = one.settings is not None and other.settings is not None
    settings = changed(one.settings or {}, other.settings or {}) if known else None
    return {"settings": _lists(settings),
            "summary": {key: [one.summary.get(key), other.summary.get(key)]
                        for key in dict.fromkeys((*one.summary, *other.summary))}}


def _lists(settings: Mapping[str, tuple[Any, Any]] | None) -> dict[str, list[Any]] | None:
    return None if settings is None else {key: [*map(_plain, pair)] for key, pair in settings.items()}


def shown(one: Whole, other: Whole) -> Iterator[RenderableType]:
    """What differs in the settings, and the numbers of both runs."""
    yield from _settings(one, other)
    rows = table("", f">{one.directory}", f">{other.directory}", ">change")
    for keys in NUMBERS.values():
        found = [(key, one.summary.get(key), other.summary.get(key)) for key in keys]
        for key, first, second in found:
            if (first, second) != (None, None):
                rows.add_row(key, _value(key, first), _value(key, second), change(key, first, second))
        rows.add_section()
    yield rows


def _settings(one: Whole, other: Whole) -> Iterator[RenderableType]:
    if one.settings is None or other.settings is None:
        gone = one if one.settings is None else other
        yield f"{gone.directory} has no scenario.toml, so settings are not compared"
        return
    found = changed(one.settings, other.settings)
    if not found:
        yield "the same settings in both"
        return
    rows = table("changed setting", str(one.directory), str(other.directory))
    rows.columns[0].min_width = max(map(len, found))
    for key, pair in found.items():
        rows.add_row(key, *map(_setting, pair))
    yield rows


def change(key: str, first: float | None, second: float | None) -> str:
    """How a number changed: in percentage points for a share, else by a percentage or as a multiple."""
    if first is None or second is None or first == second:
        return ""
    if key in _SHARES:
        return f"{100 * (second - first):+.1f} pp"
    if first <= 0 or second <= 0:
        return f"{'+' if second > first else '-'}{number(abs(second - first))}"
    ratio = second / first
    return f"{ratio - 1:+.1%}" if 1 / _MULTIPLE < ratio < _MULTIPLE else f"{number(ratio)}x"


def _value(key: str, value: float | None) -> str:
    return percent(value) if key in _SHARES else number(value)


def _setting(value: Any) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST - 4]} ..."


def _plain(value: Any) -> Any:
    """A setting as JSON can have it, which has no infinity and no dates."""
    return json.loads(json.dumps(value, default=str).replace("Infinity", '"inf"').replace("NaN", '"nan"'))
