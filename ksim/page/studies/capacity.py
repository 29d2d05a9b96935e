"""Capacity: the sentence, the table of set-ups, and the curves of goodput and attainment with their bands."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ksim.page.document import (
    INK,
    PALETTE,
    RED,
    Document,
    Figure,
    Markup,
    axis,
    element,
    figure,
    line,
    missing,
    note,
    numbers,
    pale,
    rule,
    safe,
    table,
)
from ksim.page.studies.reading import Study
from ksim.page.studies.sections import toml
from ksim.report.wording import DOWN, UP, number, percent
from ksim.study.capacity.answer import COSTS
from ksim.study.capacity.targets import FEWEST

Answer = Mapping[str, Any]
#: The most set-ups that are drawn from the start; a click on the legend shows others.
_DRAWN = 4


def lead(answer: Answer) -> Iterator[Markup]:
    """The sentence of the answer, and the numbers of the best set-up."""
    yield element("p", str(answer["sentence"]), cls="lead")
    best = next((one for one in answer["set_ups"] if one["name"] == answer["best"] and one["stands"]), None)
    if best is not None:
        yield element("dl", *_cards(answer, best), cls="cards")


def _exact(value: Any, shown: str, *path: Any) -> Markup:
    """A number of capacity.json as *shown*, with its place in the file and its exact value."""
    return element("data", shown, value=json.dumps(value), data_path=json.dumps(path))


def _cards(answer: Answer, best: Answer) -> Iterator[Markup]:
    at = list(answer["set_ups"]).index(best)
    yield _card("GPUs", _exact(best["gpus"], number(best["gpus"]), "set_ups", at, "gpus"),
                f"{number(best['replicas'])} x {best['name']}", _between(best["gpus_interval"], answer))
    highest = best["highest_rate"]
    if highest:
        rate = _exact(highest["rate"], number(highest["rate"]), "set_ups", at, "highest_rate", "rate")
        yield _card("Highest rate", rate, "requests/s", _between(highest["interval"], answer))
        if highest["model_share"] is not None:
            yield _card("Model's share of the variance", percent(highest["model_share"], 0), "the rest is traffic")
    for key, title in COSTS.items():
        if best.get(key) is not None:
            cost = _exact(best[key], number(best[key]), "set_ups", at, key)
            yield _card(title, cost, "")
    if best["binds"]:
        binds = element("span", best["binds"], cls="word")
        yield _card("Binds first", binds, "the target that a higher rate would miss")


def _card(title: str, value: Any, unit: str, interval: str | None = None) -> Markup:
    return element("div", element("dt", title), element("dd", value, element("span", f" {unit}", cls="unit")),
                   element("dd", interval, cls="interval") if interval else None, cls="card")


def _between(ends: Sequence[Any] | None, answer: Answer) -> str | None:
    if not ends:
        return None
    low, high = (number(end, rounding) if end is not None else "more" for end, rounding in zip(ends, (DOWN, UP),
                                                                                               strict=True))
    return f"{percent(answer.get('confidence') or 0.95, 0)}: {low} to {high}"


def add(document: Document, study: Study) -> None:
    """Add the table, the curves, what does not stand, and the scenario of the answer."""
    answer = study.capacity
    notes = (note(text) for text in (*(f"Assumed {one}" for one in answer.get("assumptions", ())), *answer["notes"]))
    document.section("set-ups", "The set-ups", _table(answer), *_left(answer), *notes)
    document.section("curves", "Goodput and attainment over the rate", *_curves(document, answer))
    if study.best:
        document.section("best", "The scenario of the answer", toml("best-scenario", study.best, "best.toml"))


def _table(answer: Answer) -> Markup:
    columns = ("set-up", ">GPUs", ">replicas", ">highest rate, 1/s", ">interval", ">rate per GPU",
               *(f">{title}" for title in COSTS.values()), "binds")
    rows = [_row(answer, at, one) for at, one in enumerate(answer["set_ups"]) if one["stands"]]
    if not rows:
        return missing("No set-up keeps the targets.")
    return table(columns, rows, "Set-ups that keep the targets, the best first", sortable=True)


def _row(answer: Answer, at: int, one: Answer) -> list[Any]:
    highest = one["highest_rate"] or {}
    rate, interval = highest.get("rate"), highest.get("interval")
    per_gpu = rate / one["gpus"] if rate is not None and one["gpus"] else None
    cells = [(one["gpus"], ("set_ups", at, "gpus")), (one["replicas"], ("set_ups", at, "replicas")),
             (rate, ("set_ups", at, "highest_rate", "rate"))]
    costs = [(one.get(key), ("set_ups", at, key)) for key in COSTS]
    return [one["name"], *(_sorted(value, *path) for value, path in cells), _between(interval, answer) or "-",
            (number(per_gpu), per_gpu), *(_sorted(value, *path) for value, path in costs),
            element("span", one["binds"] or "-", cls="word")]


def _sorted(value: Any, *path: Any) -> tuple[Any, Any]:
    return "-" if value is None else _exact(value, number(value), *path), value


def _left(answer: Answer) -> Iterator[Markup]:
    """Set-ups that do not keep the targets, and why."""
    rows = [(one["name"], one["problem"] or "does not keep the targets")
            for one in answer["set_ups"] if not one["stands"]]
    if rows:
        yield table(("set-up", "why it does not stand"), rows, "Set-ups that do not keep the targets")


def _points(one: Answer) -> list[Answer]:
    """The rates that were tried, in order."""
    return sorted(one["points"] or ([one["point"]] if one["point"] else []), key=lambda point: point["rate"])


def _sure(point: Answer) -> bool:
    """Whether a rate was tried often enough for an interval."""
    return bool(point["replications"] >= FEWEST)


def _curves(document: Document, answer: Answer) -> Iterator[Any]:
    tried = [(one, points) for one in answer["set_ups"] if (points := _points(one))]
    if not tried:
        yield missing("No rate was tried.")
        return
    asked = f" The dotted line is the rate that was asked for, {number(answer['rate'])}." if answer["rate"] else ""
    for at, target in enumerate(answer["targets"]):
        drawn = _drawn(answer, tried, partial(_attainment, target), "requests within the limit, %", 100.0)
        share = _share(target)
        drawn["layout"]["shapes"] += [_level(100 * share)] if share else []
        caption = (f"Share of requests within the limit of {target} over the rate of requests, with the interval of"
                   f" each rate. The dashed line is what the target asks for, a pale column the interval of a highest"
                   f" rate. Hollow marks were tried less than {FEWEST} times, and have no interval."
                   f" A double-click shows all rates.{asked}")
        yield document.figure(f"attainment-{at}", drawn, caption, *_tried(tried, target))
    yield document.figure("goodput", _drawn(answer, tried, lambda point: point["goodput"], "goodput, requests/s", 1.0),
                          "Requests per second within all targets, over the rate of requests: the table above has"
                          " them.")


def _attainment(target: str, point: Answer) -> Answer | None:
    found: Answer = point["targets"].get(target, {})
    return found.get("attainment")


def _tried(tried: Sequence[tuple[Answer, list[Answer]]], target: str) -> tuple[list[str], list[list[Any]]]:
    """The rates that were tried, as a table."""
    rows = [[_name(one), number(point["rate"]), point["replications"],
             *(_said(estimate, _sure(point), show) for estimate, show in (
                 (point["targets"][target]["attainment"], percent), (point["targets"][target]["seconds"], number),
                 (point["goodput"], number)))]
            for one, points in tried for point in points if target in point["targets"]]
    return ["set-up", ">rate, 1/s", ">replications", ">attainment", ">s", ">goodput, 1/s"], rows


def _name(one: Answer) -> str:
    return f"{one['replicas']} x {one['name']}" if (one["replicas"] or 1) > 1 else str(one["name"])


def _said(estimate: Answer, sure: bool, show: Any) -> str:
    """An estimate with its interval, where there is one."""
    low, high = estimate["interval"]
    said: str = show(estimate["value"])
    known = sure and low is not None and high is not None
    return f"{said} ({show(low, rounding=DOWN)} to {show(high, rounding=UP)})" if known else said


def _share(target: str) -> float | None:
    """The share that a target such as ttft:p99:1s asks for; None for a mean."""
    statistic = target.split(":")[1] if target.count(":") == 2 else ""
    if statistic == "median":
        return 0.5
    try:
        return float(statistic.removeprefix("p")) / 100 if statistic.startswith("p") else None
    except ValueError:
        return None


def _level(height: float) -> dict[str, Any]:
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height,
            "line": {"color": RED, "width": 1.5, "dash": "dash"}}


def _drawn(answer: Answer, tried: Sequence[tuple[Answer, list[Answer]]], of: Any, title: str, scale: float) -> Figure:
    traces: list[dict[str, Any]] = []
    for place, (one, points) in enumerate(tried):
        colour, name = PALETTE[place % len(PALETTE)], _name(one)
        known = [point for point in points if of(point) and of(point)["value"] is not None]
        symbols = ["circle" if _sure(point) else "circle-open" for point in known]
        curve = line([point["rate"] for point in known], [scale * of(point)["value"] for point in known], name, colour,
                     mode="lines+markers", marker={"symbol": symbols, "size": 7},
                     hover="%{y:,.4~g} at %{x:,.4~g} requests/s<extra>%{fullData.name}</extra>")
        group = {"legendgroup": safe(name), "visible": True if place < _DRAWN else "legendonly"}
        traces += [_band(of, list(filter(_sure, known)), colour, scale) | group, curve | group]
    asked = [rule(answer["rate"], INK, "dot")] if answer["rate"] else []
    return figure(traces, 380, xaxis=axis("requests/s", range=[0, _reach(answer, tried)]), yaxis=axis(title),
                  shapes=[*asked, *_highest(tried)], showlegend=True)


def _reach(answer: Answer, tried: Sequence[tuple[Answer, list[Answer]]]) -> float:
    """Up to which rate figures show: past what is asked for and found, but not up to every rate that was tried."""
    rates = [point["rate"] for _, points in tried for point in points]
    answers = [one["highest_rate"] for one, _ in tried if one["highest_rate"]]
    found = [found["interval"][1] or found["rate"] for found in answers]
    return float(min(1.05 * max(rates), 1.6 * max([*found, answer["rate"] or 0.0]) or max(rates)))


def _highest(tried: Sequence[tuple[Answer, list[Answer]]]) -> Iterator[dict[str, Any]]:
    """The interval of the highest rate of each set-up that has one, as a pale column."""
    for place, (one, _) in enumerate(tried[:_DRAWN]):
        if one["highest_rate"] and None not in (ends := one["highest_rate"]["interval"]):
            yield {"type": "rect", "yref": "paper", "x0": ends[0], "x1": ends[1], "y0": 0, "y1": 1, "layer": "below",
                   "fillcolor": pale(PALETTE[place % len(PALETTE)], 0.10), "line": {"width": 0}}


def _band(of: Any, points: list[Answer], colour: str, scale: float) -> dict[str, Any]:
    """The intervals as a pale area: up along the upper ends, and back along the lower ones."""
    rates, estimates = [point["rate"] for point in points], [of(point) for point in points]
    low, high = ([estimate["value"] if estimate["interval"][end] is None else estimate["interval"][end]
                  for estimate in estimates] for end in (0, 1))
    return {"type": "scatter", "mode": "lines", "x": numbers([*rates, *rates[::-1]]), "fill": "toself",
            "y": numbers([scale * value for value in (*high, *low[::-1])]), "fillcolor": pale(colour, 0.16),
            "line": {"width": 0, "color": colour}, "hoverinfo": "skip", "showlegend": False}
