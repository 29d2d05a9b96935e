"""Routers side by side: the table that ranks them, and how long users wait by router and age of signals."""

from collections.abc import Iterator, Sequence
from math import inf, isnan
from typing import Any

from ksim.page.document import PALETTE, Document, Figure, Markup, axis, element, figure, note, numbers, safe, table
from ksim.page.studies.reading import Study
from ksim.study.routers.plan import is_yardstick
from ksim.study.routers.telling import (
    COLUMNS,
    age,
    age_title,
    cell,
    explained,
    lanes,
    notes,
    rank_key,
    ranked,
    router_of,
    told,
)
from ksim.study.rows import SweepPoint, points_of

#: The numbers that are drawn, with the titles of their axes.
_DRAWN = {"mean_latency_regret_ms": "mean e2e regret, ms", "mean_regret_ms": "mean regret, ms",
          "p90_ttft_ms": "TTFT p90, ms", "prefix_cache_hit_rate": "share of prompt tokens found on the GPU"}


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
    keys = told(points)
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
        known = [point for point in points if point.value(key) is not None]
        if known:
            yield document.figure(f"routers-{key}", _drawn(known, key, title), f"{key} of each router. Colours are ages"
                                  " of signals, one below the other; bars are 95 % intervals of means over seeds. The"
                                  " table above has all numbers.")


def _drawn(points: Sequence[SweepPoint], key: str, title: str) -> Figure:
    routers = list(dict.fromkeys(map(_name, points)))
    ages = list(dict.fromkeys(map(age, points)))
    beside = lanes(ages)
    traces = [_dots([point for point in points if age(point) == one], key, one, PALETTE[place % len(PALETTE)],
                    [routers.index(_name(point)) + beside[one] for point in points if age(point) == one])
              for place, one in enumerate(ages)]
    return figure(traces, 120 + (22 + 6 * len(ages)) * len(routers), xaxis=axis(title),
                  yaxis=axis(range=[len(routers) - 0.5, -0.5], tickvals=[*range(len(routers))],
                             ticktext=[*map(safe, routers)], zeroline=False), showlegend=len(ages) > 1)


def _dots(points: Sequence[SweepPoint], key: str, name: str, colour: str, heights: Sequence[float]) -> dict[str, Any]:
    """The dots of one age, beside those of the others."""
    widths, values = [point.half_width(key) for point in points], [float(point.value(key)) for point in points]
    least, most = -inf if "regret" in key else 0.0, 1.0 if key.endswith("hit_rate") else inf
    return {"type": "scatter", "mode": "markers", "marker": {"color": colour, "size": 8},
            "name": safe(age_title(name)),
            "x": numbers(values), "y": [*heights],
            "text": [safe(router_of(point)) for point in points],
            "error_x": {"type": "data", "symmetric": False, "color": colour, "thickness": 1.5,
                        "array": numbers(_bounded(widths, [most - value for value in values])),
                        "arrayminus": numbers(_bounded(widths, [value - least for value in values]))},
            "hovertemplate": "%{text}: %{x:,.4~g}<extra>%{fullData.name}</extra>"}


def _bounded(widths: Sequence[float], rooms: Sequence[float]) -> list[float]:
    """Half widths of intervals that end where values do, such as times at 0 and shares at 1."""
    return [width if isnan(width) else min(width, room) for width, room in zip(widths, rooms, strict=True)]
