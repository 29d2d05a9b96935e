"""Numbers and settings of points, as the pages of studies write them."""

import json
from collections.abc import Sequence
from typing import Any

from ksim.page.markup import Markup, element
from ksim.page.studies.reading import Point, Study
from ksim.report.wording import number, outwards
from ksim.study.grid import short_names, value_text

#: Numbers that tables and cards show first, where a study has them.
SHOWN = ("mean_latency_regret_ms", "mean_regret_ms", "usd_per_million_tokens", "joules_per_million_tokens",
         "request_throughput", "request_goodput", "slo_attainment", "output_throughput", "median_ttft_ms",
         "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_e2el_ms", "p99_e2el_ms", "joules_per_output_token",
         "average_watts", "gpus")


def shown_keys(study: Study) -> list[str]:
    """The numbers of a study that its table shows: the objectives, and those that most ask for."""
    known = {key for point in study.points for key in point.means}
    return [*dict.fromkeys(key for key in (*study.objectives, *SHOWN) if key in known)]


def mean(point: Point, key: str) -> Markup | str:
    """The mean of a number at *point*, and its ends where replications differ."""
    if key not in point.means:
        return "-"
    value, (low, high) = point.means[key], point.ends[key]
    spread = element("span", f" {outwards(low, high)}", cls="interval") if high > low else None
    return element("span", element("data", number(value), value=json.dumps(value), data_point=point.number,
                                   data_key=key), spread)


def settings_text(point: Point, axes: Sequence[str]) -> str:
    """The settings of *point* in a line."""
    names = short_names(axes)
    return ", ".join(f"{names[key]} {value_text(point.settings[key])}" for key in axes if key in point.settings) or (
        "as the scenario says")


def plain(value: Any) -> Any:
    """A setting as a figure has it: a number, or text; a dash for what a point leaves to the scenario."""
    if value is None:
        return "-"
    return value if isinstance(value, int | float) and not isinstance(value, bool) else value_text(value)
