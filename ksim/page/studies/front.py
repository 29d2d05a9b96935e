"""The front for two chosen objectives: points.js draws it, and a click on a point shows its scenario."""

from typing import Any

from ksim.page.charts import BLUE, GREY, ORANGE, RED, axis, figure, numbers
from ksim.page.document import Document
from ksim.page.markup import Markup, element, missing, note
from ksim.page.studies.reading import Study
from ksim.page.studies.wording import plain, settings_text, shown_keys

#: What else does not count, by the kind of the study.
_ALSO = {"routers": ", nor does the yardstick, which knows what no router can know"}


def add(document: Document, study: Study) -> None:
    """Add the plane of two objectives, and the columns of all points for the scripts of the page."""
    if not any(point.means for point in study.points):
        document.section("front", "The front", missing("No run went well, so there is nothing to compare."))
        return
    x, y = _first(study)
    document.data["study"] = _columns(study) | {"x": x, "y": y}
    dotted = {"color": BLUE, "width": 1.5, "dash": "dot"}
    drawn = figure([_dots("other points", GREY, 8), _dots("does not count", ORANGE, 8, "x"),
                    _dots("on the front", BLUE, 11, mode="lines+markers", line=dotted),
                    _ring()], 460, xaxis=axis(x), yaxis=axis(y), showlegend=True)
    document.section(
        "front", "The front", _controls(study, x, y),
        document.figure("front", drawn, "Points that no other beats in both numbers are on the front. A click shows a"
                        " point and its scenario."),
        element("div", id="front-table"),
        note("Each point is the mean of its replications. Points that could not keep up with their load, failed in"
             f" part, or miss what is required do not count{_ALSO.get(study.kind, '')}."))


def _first(study: Study) -> tuple[str, str]:
    """The objectives that are drawn first."""
    wanted = [key for key in shown_keys(study) if key in study.keys] or study.keys or ["duration"]
    costs = [key for key in wanted if key.startswith(("usd_", "joules_"))]
    latencies = [key for key in wanted if key.endswith("_ms")]
    if len(study.objectives) > 1:
        return wanted[0], wanted[1]
    x = study.objectives[0] if study.objectives else (costs or wanted)[0]
    return x, next((key for key in (*latencies, *wanted) if key != x), x)


def _dots(name: str, colour: str, size: int, symbol: str = "circle", **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": "markers", "x": [], "y": [], "name": name,
            "marker": {"color": colour, "size": size, "symbol": symbol},
            "hovertemplate": "point %{customdata}<br>%{text}<br>%{x:,.4~g}, %{y:,.4~g}<extra></extra>", **more}


def _ring() -> dict[str, Any]:
    return {"type": "scatter", "mode": "markers", "x": [], "y": [], "name": "chosen", "showlegend": False,
            "hoverinfo": "skip", "marker": {"color": "rgba(0,0,0,0)", "size": 19, "line": {"color": RED, "width": 3}}}


def _columns(study: Study) -> dict[str, Any]:
    """All points, a column for each setting and number; problems say why a point does not count.

    Settings that are quantities have numbers on an axis (`scales`), too, with their unit.
    """
    points = study.points
    return {
        "points": [point.number for point in points], "axes": study.axes, "keys": study.keys,
        "names": [settings_text(point, study.axes) for point in points],
        "problems": [study.problem(point) for point in points],
        "settings": {key: [plain(point.settings.get(key)) for point in points] for key in study.axes},
        "scales": {key: {"values": numbers(values, 7), "unit": unit} for key, (values, unit) in study.scales.items()},
        "values": {key: numbers([point.means.get(key) for point in points], 7) for key in study.keys},
        "more": [key for key in study.keys if study.more(key)], "scenarios": [point.scenario for point in points]}


def _controls(study: Study, x: str, y: str) -> Markup:
    return element("form", *(element("label", f"{title} ", _select(f"front-{name}", study.keys, chosen))
                             for title, name, chosen in (("across", "x", x), ("up", "y", y))),
                   element("span", id="front-said", cls="note", aria_live="polite"), cls="controls")


def _select(ident: str, keys: list[str], chosen: str) -> Markup:
    return element("select", *(element("option", key, value=key, selected=key == chosen) for key in keys), id=ident)
