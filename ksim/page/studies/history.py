"""How an optimisation went: the objective of each trial, and the best so far."""

from typing import Any

from ksim.page.charts import BLUE, GREEN, GREY, Figure, axis, figure, line, numbers, safe
from ksim.page.document import Document
from ksim.page.markup import Markup, missing
from ksim.page.studies.reading import Point, Study
from ksim.page.studies.wording import mean, settings_text


def add(document: Document, study: Study) -> None:
    """Add a figure for each objective of a tune; other studies try their points in no telling order."""
    if study.kind != "tune":
        return
    keys = [key for key in study.objectives if key in study.keys]
    if not keys:
        document.section("history", "The search", missing("study.json names no objective that any run has."))
        return
    document.section("history", "The search", *(_figure(document, study, key) for key in keys))


def _figure(document: Document, study: Study, key: str) -> Markup:
    more, found = study.more(key), list[Point]()
    counting = [point for point in study.counting if key in point.means]
    for point in counting:
        if not found or (point.means[key] > found[-1].means[key] if more else point.means[key] < found[-1].means[key]):
            found.append(point)
    bounds = f" of points that keep {' and '.join(map(str, study.required))}" if study.required else ""
    best = f" The best is point {found[-1].number}." if found else " No trial counts."
    rows = [(point.number, mean(point, key), settings_text(point, study.axes)) for point in found]
    caption = f"{key} of each trial in order, and the {'highest' if more else 'lowest'} so far{bounds}.{best}"
    return document.figure(f"history-{key}", _drawn(study, key, counting, found), caption,
                           ("trial", f">{key}, best so far", "settings"), rows)


def _drawn(study: Study, key: str, counting: list[Point], found: list[Point]) -> Figure:
    others = [point for point in study.points if key in point.means and point not in counting]
    x, y = [point.number for point in found], [point.means[key] for point in found]
    best = line([*x, study.points[-1].number], [*y, *y[-1:]], "best so far", GREEN, line={"shape": "hv"})
    return figure([_dots(study, key, "does not count", others, GREY, "x"), _dots(study, key, "trial", counting, BLUE),
                   *([best] if found else [])], 360, xaxis=axis("trial"), yaxis=axis(key), showlegend=True)


def _dots(study: Study, key: str, name: str, points: list[Point], colour: str,
          symbol: str = "circle") -> dict[str, Any]:
    return {"type": "scatter", "mode": "markers", "name": name, "x": [point.number for point in points],
            "y": numbers([point.means[key] for point in points]),
            "marker": {"color": colour, "size": 7, "symbol": symbol},
            "text": [safe(settings_text(point, study.axes)) for point in points],
            "hovertemplate": "trial %{x}: %{y:,.4~g}<br>%{text}<extra></extra>"}
