"""The table of all points, which its headings sort."""

from typing import Any

from ksim.page.document import Document
from ksim.page.markup import element, table
from ksim.page.studies.reading import Point, Study
from ksim.page.studies.wording import mean, plain, shown_keys
from ksim.study.grid import short_names


def add(document: Document, study: Study) -> None:
    """Add the table, and the points that failed with their reasons."""
    keys = shown_keys(study)
    names = short_names(study.axes)
    axes = (f"{'>' * (key in study.scales)}{names[key]}" for key in study.axes)
    columns = ("point", *axes, *(f">{key}" for key in keys), "~remark")
    rows = [_row(study, point, at, keys) for at, point in enumerate(study.points)]
    document.section("points", "All points", element("div", table(columns, rows, "Points of the study; means over their"
                     " replications, and between which ends these lay", sortable=True, id="points-table"), cls="tall"))


def _row(study: Study, point: Point, at: int, keys: list[str]) -> list[Any]:
    chosen = element("button", f"{point.number}", type="button", cls="choose", data_at=at if point.means else None,
                     disabled=not point.means, aria_label=f"Show point {point.number}")
    settings = [(plain(point.settings.get(key)), study.scales[key][0][at] if key in study.scales else None)
                for key in study.axes]
    return [(chosen, point.number), *settings,
            *((mean(point, key), point.means.get(key)) for key in keys), study.problem(point)]
