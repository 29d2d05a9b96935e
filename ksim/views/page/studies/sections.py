"""The table of all points, which its headings sort.

A chosen point: its settings, its numbers, and its scenario to copy or to save.

The answer of a sweep or a tune: how many points there are, and the best of each objective.

What a study did: its command, and the scenario that it started from.

The front for two chosen objectives: points.js draws it, and a click on a point shows its scenario.

How an optimisation went: the objective of each trial, and the best so far.

Parallel coordinates: a line for each point across its settings and numbers; parallel.js draws and brushes them.
"""

import json
from collections.abc import Iterator
from typing import Any

from ksim.study.grid import short_names
from ksim.views.charts import BLUE, GREY, ORANGE
from ksim.views.figures.studies import TrialMark, best_so_far, search_chart
from ksim.views.html import Markup, breakable, element
from ksim.views.page.document import Document, details, missing, note, table
from ksim.views.page.drawing import axis, dots, figure, numbers
from ksim.views.page.studies.reading import Point, Study, mean, plain, settings_text, shown_keys


def add_points(document: Document, study: Study) -> None:
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


def add_chosen(document: Document, study: Study) -> None:
    """Add the chooser, which points.js fills; nothing where no point went well."""
    if "study" not in document.data:
        return
    options = (element("option", f"point {number}: {name}", value=at) for at, (number, name) in enumerate(
        zip(document.data["study"]["points"], document.data["study"]["names"], strict=True)))
    form = element("form", element("label", "Point ", element("select", *options, id="point")),
                   element("button", "Previous", type="button", id="point-previous"),
                   element("button", "Next", type="button", id="point-next"), cls="controls", id="point-form")
    document.section("chosen-point", "Choose a point", form, element("div", id="point-told", aria_live="polite"),
                     toml("point-scenario", "", "scenario.toml"))


def toml(ident: str, text: str, name: str) -> object:
    """A scenario with buttons that copy and save it."""
    return element("div", element("p", element("button", "Copy", type="button", cls="copy", data_copies=ident),
                                  " ", element("button", f"Save as {name}", type="button", cls="copy", data_saves=ident,
                                               data_name=name),
                                  " ", element("span", cls="note", role="status", id=f"{ident}-said"), cls="buttons"),
                   element("pre", element("code", text, id=ident), tabindex="0"))


#: The most numbers with a card of their own.
_CARDS = 6


def lead(study: Study) -> Iterator[Markup]:
    """A sentence, and a card with the best point of each number that matters."""
    yield element("p", _sentence(study), cls="lead")
    counting = study.counting
    if not counting:
        yield element("p", "No point counts, so there is no best one; the table says why.", cls="missing")
        return
    keys = [key for key in shown_keys(study) if len({point.means.get(key) for point in counting}) > 1]
    cards = (_card(study, key, counting) for key in (keys or shown_keys(study))[:_CARDS])
    yield element("dl", *cards, cls="cards")


def _sentence(study: Study) -> str:
    runs, failed = len(study.rows), sum(point.failed for point in study.points)
    saturated = sum(point.saturated for point in study.points)
    said = [f"{_count(len(study.points), 'point')}, {_count(runs, 'run')}"]
    if failed:
        said.append(f"{failed:,} of them failed, were stopped or have not been run")
    if saturated:
        said.append(f"{_count(saturated, 'point')} could not keep up with the load")
    if study.required:
        said.append(f"{_count(len(study.counting), 'point')} kept {' and '.join(map(str, study.required))}")
    return "; ".join(said) + f". {_over(study)}"


def _over(study: Study) -> str:
    return f"What varies: {', '.join(study.axes)}." if study.axes else "Nothing varies."


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _card(study: Study, key: str, points: list[Point]) -> Markup:
    more = study.more(key)
    having = [point for point in points if key in point.means]
    if not having:
        return element("div", element("dt", key), element("dd", "-"), cls="card")
    best = (max if more else min)(having, key=lambda point: point.means[key])
    settings = breakable(f"point {best.number}: {settings_text(best, study.axes)}")
    return element("div", element("dt", "Highest " if more else "Lowest ", breakable(key)),
                   element("dd", mean(best, key)), element("dd", settings, cls="interval"), cls="card")


def add_settings(document: Document, study: Study) -> None:
    """Add the command of the study, setting by setting, and its scenario."""
    rows = [(breakable(key), _shown(value)) for key, value in study.command.items()]
    asked = table(("setting", "value"), rows, f"The {study.kind}") if rows else None
    document.section("settings", "What was asked", asked,
                     details("The scenario that it starts from",
                             element("pre", element("code", study.scenario), tabindex="0")))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


#: What else does not count, by the kind of the study.
_ALSO = {"routers": ", nor does the yardstick, which knows what no router can know"}


def add_front(document: Document, study: Study) -> None:
    """Add the plane of two objectives, and the columns of all points for the scripts of the page."""
    if not any(point.means for point in study.points):
        document.section("front", "The front", missing("No run went well, so there is nothing to compare."))
        return
    x, y = _first(study)
    document.data["study"] = _columns(study) | {"x": x, "y": y}
    dotted = {"color": BLUE, "width": 1.5, "dash": "dot"}
    hover = {"hovertemplate": "point %{customdata}<br>%{text}<br>%{x:,.4~g}, %{y:,.4~g}<extra></extra>"}
    drawn = figure([dots("other points", GREY, 8, **hover),
                    dots("does not count", ORANGE, 8, marker={"symbol": "x"}, **hover),
                    dots("on the front", BLUE, 11, mode="lines+markers", line=dotted, **hover),
                    dots("chosen", "", 19)], 460, xaxis=axis(x), yaxis=axis(y))
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


def add_history(document: Document, study: Study) -> None:
    """Add a figure for each objective of a tune; other studies try their points in no telling order."""
    if study.kind != "tune":
        return
    keys = [key for key in study.objectives if key in study.keys]
    if not keys:
        document.section("history", "The search", missing("study.json names no objective that any run has."))
        return
    document.section("history", "The search", *(_figure(document, study, key) for key in keys))


def _figure(document: Document, study: Study, key: str) -> Markup:
    more, counting = study.more(key), {id(point) for point in study.counting}
    trials = [TrialMark(point.number, point.means[key], id(point) in counting, settings_text(point, study.axes))
              for point in study.points if key in point.means]
    found = best_so_far(trials, more)
    bounds = f" of points that keep {' and '.join(map(str, study.required))}" if study.required else ""
    best = f" The best is point {found[-1].number}." if found else " No trial counts."
    by_number = {point.number: point for point in study.points}
    rows = [(trial.number, mean(by_number[trial.number], key), trial.said) for trial in found]
    caption = f"{key} of each trial in order, and the {'highest' if more else 'lowest'} so far{bounds}.{best}"
    return document.figure(f"history-{key}", search_chart("", "", key, trials, more), caption,
                           ("trial", f">{key}, best so far", "settings"), rows, 360)


#: Numbers that have an axis at first.
_MOST = 5


def add_parallel(document: Document, study: Study) -> None:
    """Add the place for the axes and their bounds; nothing where no point went well."""
    if "study" not in document.data:
        return
    first = [key for key in shown_keys(study) if key in study.keys][:_MOST] or study.keys[:_MOST]
    document.data["study"]["parallel"] = first
    boxes = (element("label", element("input", type="checkbox", value=key, checked=key in first), f" {key}")
             for key in study.keys)
    document.section(
        "parallel", "Parallel coordinates",
        note("Drag along an axis, or type bounds below it, to keep only the lines that pass there. Colours go with the"
             " objective that the front has up."),
        element("div", id="parallel-plot", cls="scroll", tabindex="0", role="group",
                aria_label="Parallel coordinates; the bounds below say and set the same"),
        element("form", id="parallel-bounds", cls="controls"),
        element("p", element("button", "Forget all bounds", type="button", id="parallel-reset"), " ",
                element("span", id="parallel-said", cls="note", aria_live="polite"), cls="buttons"),
        details("Choose the numbers", element("div", *boxes, cls="boxes", id="parallel-keys")))
