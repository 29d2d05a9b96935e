"""Routers side by side: the table that ranks them, and how long users wait by router and age of signals."""

from collections.abc import Iterator, Sequence
from typing import Any

from ksim.results.numbers import DRAWN_OF_ROUTERS, number_of
from ksim.study.routers import (
    COLUMNS,
    age,
    cell,
    dots_of,
    explained,
    is_yardstick,
    notes,
    rank_key,
    ranked,
    router_of,
    shown_keys,
)
from ksim.study.rows import SweepPoint, points_of
from ksim.views.charts import Chart
from ksim.views.figures.studies import routers_panel
from ksim.views.page.document import Document, note, table
from ksim.views.page.studies.reading import Study
from ksim.views.tables import Markup, element

#: The numbers that are drawn, with the titles of their axes.
_DRAWN = {key: number_of(key).title for key in ("mean_latency_regret_ms", *DRAWN_OF_ROUTERS[:2])} | {
    "prefix_cache_hit_rate": "share of prompt tokens found on the GPU"}


def add_routers(document: Document, study: Study) -> None:
    """Add the ranking and its figures; only comparisons of routers have them."""
    if study.kind != "routers":
        return
    points = points_of(study.rows)
    good = ranked(points)
    document.section(
        "routers", "The routers", _table(good) if good else None,
        *(note(text) for text in (*notes(points), *explained(good))),
        note("Regret is how much longer a request waits for its first token (e2e: its last) than in the run of the same"
             " requests in which the router sees the true state of all engines. All routers get the same requests."),
        *_figures(document, good))


def _table(points: Sequence[SweepPoint]) -> Markup:
    keys = shown_keys(points)
    rows = [(_name(point), age(point), *((_number(point, key), point.value(key)) for key in keys))
            for point in points]
    return table(("router", "age", *(f">{COLUMNS[key]}" for key in keys)), rows, "Routers by their"
                 f" {COLUMNS[rank_key(points)]}, the least first; of several ages, the first counts", sortable=True)


def _name(point: SweepPoint) -> str:
    """The router of *point*, and whether it is the yardstick."""
    return f"{router_of(point)}{' (yardstick)' * is_yardstick(point.settings)}"


def _number(point: SweepPoint, key: str) -> Markup:
    return element("data", cell(point, key), value=point.value(key), data_point=point.number, data_key=key)


def _figures(document: Document, points: Sequence[SweepPoint]) -> Iterator[Any]:
    for key, title in _DRAWN.items():
        if dots := dots_of(points, key):
            routers, ages = (list(dict.fromkeys(getattr(dot, name) for dot in dots)) for name in ("router", "age"))
            panel = routers_panel(title, dots, routers, ages)
            drawn = Chart("", [panel], legend="below" if len(ages) > 1 else "",
                          legend_title="age of signals")
            yield document.figure(f"routers-{key}", drawn, f"{key} of each router. Colours are ages of signals, one"
                                  " below the other; bars are 95 % intervals of means over seeds. The table above has"
                                  " all numbers.", height=120 + (22 + 6 * len(ages)) * len(routers))
