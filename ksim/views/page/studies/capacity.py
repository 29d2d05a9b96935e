"""Capacity: the sentence, the table of set-ups, and the curves of goodput and attainment with their bands."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ksim.study.capacity.ask import COSTS, FEWEST
from ksim.views.charts import Chart
from ksim.views.figures.studies import Answer, capacity_panels, set_up_name, tried_rates
from ksim.views.page.document import Document, missing, note, table
from ksim.views.page.studies.reading import Study
from ksim.views.page.studies.sections import toml
from ksim.views.tables import Markup, element
from ksim.views.wording import DOWN, UP, number, percent


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


def _curves(document: Document, answer: Answer) -> Iterator[Any]:
    tried = [(one, points) for one in answer["set_ups"] if (points := tried_rates(one))]
    if not tried:
        yield missing("No rate was tried.")
        return
    asked = f" The dotted line is the rate that was asked for, {number(answer['rate'])}." if answer["rate"] else ""
    for at, (name, panel) in enumerate(capacity_panels(answer, FEWEST)):
        if name not in answer["targets"]:
            yield document.figure(name, Chart("", [panel]), "Requests per second within all targets, over the rate of"
                                  " requests: the table above has them.", height=380)
            continue
        caption = (f"Share of requests within the limit of {name} over the rate of requests, with the interval of"
                   f" each rate. The dashed line is what the target asks for, a pale column the interval of a highest"
                   f" rate. Hollow marks were tried less than {FEWEST} times, and have no interval."
                   f" A double-click shows all rates.{asked}")
        yield document.figure(f"attainment-{at}", Chart("", [panel]), caption, *_tried(tried, name), height=380)


def _tried(tried: Sequence[tuple[Answer, list[Answer]]], target: str) -> tuple[list[str], list[list[Any]]]:
    """The rates that were tried, as a table."""
    rows = [[set_up_name(one), number(point["rate"]), point["replications"],
             *(_said(estimate, point["replications"] >= FEWEST, show) for estimate, show in (
                 (point["targets"][target]["attainment"], percent), (point["targets"][target]["seconds"], number),
                 (point["goodput"], number)))]
            for one, points in tried for point in points if target in point["targets"]]
    return ["set-up", ">rate, 1/s", ">replications", ">attainment", ">s", ">goodput, 1/s"], rows


def _said(estimate: Answer, sure: bool, show: Any) -> str:
    """An estimate with its interval, where there is one."""
    low, high = estimate["interval"]
    said: str = show(estimate["value"])
    known = sure and low is not None and high is not None
    return f"{said} ({show(low, rounding=DOWN)} to {show(high, rounding=UP)})" if known else said
