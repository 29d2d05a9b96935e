"""The first sections of a page: the answer in a sentence and cards, insights, single requests, and missed targets.

The page holds the columns of all requests, or where there are very many, of the slowest ones and of every n-th other.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isnan
from typing import Any

import numpy as np

from ksim.results.attribution import by_group, groups
from ksim.results.numbers import latency_key
from ksim.results.steps import Bools, Floats, Ints
from ksim.views.charts import BLUE, GREY
from ksim.views.figures.run import COLOURS, breakdown_chart
from ksim.views.page.document import Document, missing, note, table, told
from ksim.views.page.drawing import Figure, axis, dots, figure, numbers
from ksim.views.page.reading import STREAMED, SavedRun
from ksim.views.tables import Markup, element
from ksim.views.wording import DOWN, UP, endings, number, percent

Summary = Mapping[str, Any]


def lead(run: SavedRun) -> Iterator[Markup]:
    """The sentence, then a card for each subject."""
    yield element("p", *_sentence(run), cls="lead")
    cards = [*_latencies(run.summary), *_throughput(run.summary), *_targets(run), *_energy(run.summary),
             *_cost(run.summary)]
    yield element("dl", *cards, cls="cards")
    if run.summary["completed"] and run.summary.get("median_ttft_low_ms") is None:
        yield element("p", "The oracle of this run, or its streaming, gives no intervals.", cls="note")


def shown(summary: Summary, key: str, show: Callable[[Any], str] = number) -> Markup:
    """The number of the summary at *key*."""
    return told(summary.get(key), show(summary.get(key)), key)


def _sentence(run: SavedRun) -> Iterator[Any]:
    summary = run.summary
    counts = ", ".join(f"{count:,} {word}" for count, word in endings(summary))
    if not summary["completed"]:
        yield f"No request completed ({counts}), so this run has no latencies. The insights say why."
        return
    yield f"{counts} in "
    yield shown(summary, "duration")
    yield " s: "
    yield shown(summary, "request_throughput")
    yield " requests/s and "
    yield shown(summary, "output_throughput")
    yield " output tokens/s."
    yield from _verdict(run)


def _verdict(run: SavedRun) -> Iterator[Any]:
    """Whether the run met its targets, and whether its latencies mean anything."""
    if run.targets:
        yield " "
        yield shown(run.summary, "slo_attainment", percent)
        yield " of the requests met "
        limits = [f"{name.upper()} {number(limit)} ms" for name, limit in run.targets.items()]
        yield f"{'all targets' if len(limits) > 1 else 'the target'} ({', '.join(limits)})."
    if run.summary["saturated"]:
        yield element("strong", " More came than could be served, so latencies grow with the length of the run.")


def _card(title: str, *lines: Any) -> Markup:
    return element("div", element("dt", title), *(element("dd", *line) for line in lines), cls="card")


def _latencies(summary: Summary) -> Iterator[Markup]:
    for name, title in (("ttft", "Time to first token"), ("tpot", "Time per output token")):
        if summary[f"median_{name}_ms"] is None:
            yield _card(title, ("-",), (f"no request has a {name.upper()}",))
        else:
            yield _card(title, *_statistics(summary, name))


def _statistics(summary: Summary, name: str) -> Iterator[tuple[Any, ...]]:
    for statistic, word in (("median", "median"), ("p99", "p99")):
        yield (shown(summary, latency_key(name, statistic)), element("span", " ms ", word, cls="unit"),
               *_interval(summary, f"{statistic}_{name}_low_ms", f"{statistic}_{name}_high_ms"))


def _interval(summary: Summary, low: str, high: str, show: Callable[..., str] = number,
              unit: str = "") -> Iterator[Any]:
    """The ends of a 90 % interval in small print; nothing where they are unknown."""
    if summary.get(low) is not None:
        yield element("span", "90 %: ", shown(summary, low, partial(show, rounding=DOWN)), " to ",
                      shown(summary, high, partial(show, rounding=UP)), unit,
                      cls="interval")


def _throughput(summary: Summary) -> Iterator[Markup]:
    offered = (element("span", "offered: ", shown(summary, "offered_request_rate"), cls="interval"),)
    yield _card("Throughput", (shown(summary, "output_throughput"), element("span", " output tokens/s", cls="unit")),
                (shown(summary, "request_throughput"), element("span", " requests/s", cls="unit"),
                 *(offered if summary["offered_request_rate"] is not None else ())))


def _targets(run: SavedRun) -> Iterator[Markup]:
    if not run.targets:
        yield _card("Targets", ("-",), ("none is set ([slo] of the scenario)",))
        return
    yield _card("Targets met", (shown(run.summary, "slo_attainment", percent),
                                element("span", " of requests", cls="unit")),
                (shown(run.summary, "request_goodput"), element("span", " requests/s of goodput", cls="unit")))


def _kilo(joules: float | None, **rounding: str) -> str:
    return number(None if joules is None else joules / 1e3, **rounding)


def _energy(summary: Summary) -> Iterator[Markup]:
    yield _card("Energy", (shown(summary, "joules_per_output_token"), element("span", " J/output token", cls="unit")),
                (shown(summary, "energy_joules", _kilo), element("span", " kJ of GPUs", cls="unit"),
                 *_interval(summary, "energy_joules_low", "energy_joules_high", _kilo)),
                (shown(summary, "average_watts"), element("span", " W on average", cls="unit")))


def _cost(summary: Summary) -> Iterator[Markup]:
    if summary["dollars_per_million_output_tokens"] is None:
        yield _card("Cost", ("-",), ("no price is set ([energy] of the scenario)",))
        return
    yield _card("Cost", ("$", shown(summary, "dollars_per_million_output_tokens"),
                         element("span", " per million output tokens", cls="unit")),
                *(("$", shown(summary, key), element("span", f" {word}", cls="unit"))
                  for key, word in (("gpu_dollars", "for GPUs"), ("energy_dollars", "for energy"))
                  if summary[key] is not None))


def add_insights(document: Document, run: SavedRun) -> None:
    """Add the insights; nothing where a run has none."""
    entries = [element("li", element("strong", "Warning: ") if insight.warning else None, insight.text,
                       cls="warning" if insight.warning else None) for insight in run.insights]
    partial = None if "insights" in run.overview else note(
        "Only what summary.json tells: this run was streamed, or written by an older ksim.")
    if entries or partial:
        document.section("insights", "What stands out", element("ul", *entries, cls="insights") if entries else None,
                         partial)


#: The most requests that a page holds, and how many of them are the slowest.
MOST, _SLOWEST = 8_000, 2_000
#: Columns in whole microseconds, for which a gzipped page has room.
_MICRO = {"arrival": "arrival_s", "queue": "queue_s", "ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s"}
_COUNTS = ("id", "engine", "prompt_tokens", "output_tokens", "cached_tokens", "preemptions")
_TEXTS = ("status", "reason", "session", "tenant")


def add_chooser(document: Document, run: SavedRun) -> None:
    """Add the chooser, whose contents requests.js fills in."""
    if not len(run.requests["id"]):
        document.section("request", "Choose a request", missing("No request arrived."))
        return
    rows = kept(run)
    document.data["requests"] = columns(run, rows)
    whole = len(rows) == len(run.requests["id"])
    left = None if whole else note(
        f"Of {len(run.requests['id']):,} requests the page holds {len(rows):,}: the {_SLOWEST:,} slowest, and of the"
        " others every n-th. All numbers above count all requests.")
    places = document.figure("places", _places(), "Every request by its arrival and its latency. A click chooses one;"
                             " the ring marks the chosen one.")
    phases = missing(f"Its phases are not known: {STREAMED}.") if run.breakdown is None else document.figure(
        "request", _bars(), "Its phases in the order of its life: up to its first token, and from there to its last.")
    document.section("request", "Choose a request", left, _controls(), places,
                     element("div", id="chosen", aria_live="polite"), phases, element("div", id="chosen-phases"))


def kept(run: SavedRun) -> Ints:
    """The rows that the page holds, in order of arrival."""
    count = len(run.requests["id"])
    if count <= MOST:
        return np.arange(count)
    slow = np.argsort(-np.nan_to_num(run.latency("e2el")), kind="stable")[:_SLOWEST // 2]
    late = np.argsort(-np.nan_to_num(run.latency("ttft")), kind="stable")[:_SLOWEST // 2]
    return np.unique(np.concatenate([slow, late, np.linspace(0, count - 1, MOST - _SLOWEST).astype(np.int64)]))


def columns(run: SavedRun, rows: Ints) -> dict[str, Any]:
    """The columns of these requests: times in microseconds, unknown ones null."""
    requests = run.requests
    made: dict[str, Any] = {name: _whole(1e6 * requests[column][rows]) for name, column in _MICRO.items()}
    made |= {name: _whole(requests[name][rows]) for name in _COUNTS}
    if "joules" in requests:
        made["joules"] = numbers(requests["joules"][rows].astype(float))
    texts = {name: [text or "" for text in requests[name][rows].tolist()] for name in _TEXTS}
    made |= {name: column for name, column in texts.items() if any(column)}
    return {"columns": made, "targets": run.targets, "total": len(requests["id"]), "phases": _phases(run, rows)}


def _whole(values: Any) -> list[int | None]:
    if values.dtype.kind in "iu":
        return list(values.tolist())
    return [None if isnan(value) else round(value) for value in values.astype(float).tolist()]


def _phases(run: SavedRun, rows: Ints) -> dict[str, Any] | None:
    """Microseconds of each group of phases, up to the first token and after it, of requests that have them."""
    if run.breakdown is None:
        return None
    index = np.full(len(run.requests["id"]), -1)
    index[run.phase_rows] = np.arange(len(run.phase_rows))
    there = index[rows]
    titles = groups(run.breakdown.names)
    parts = [by_group(seconds, run.breakdown.names)[there] for seconds in (run.breakdown.to_first, run.breakdown.after)]
    used = [at for at in range(len(titles)) if any(part[there >= 0, at].any() for part in parts)]
    return {"titles": [titles[at] for at in used], "colours": [COLOURS.get(titles[at], GREY) for at in used],
            "to_first": [_known(parts[0][:, at], there) for at in used],
            "after": [_known(parts[1][:, at], there) for at in used]}


def _known(seconds: Floats, there: Ints) -> list[int]:
    return [round(1e6 * value) if row >= 0 else 0 for value, row in zip(seconds.tolist(), there.tolist(), strict=True)]


def _places() -> Figure:
    """The requests in a plane; requests.js fills in the latency that is chosen."""
    hover = "request %{customdata}<br>arrived %{x:,.4~g} s<br>%{y:,.4~g} ms<extra></extra>"
    return figure([dots("requests", BLUE, 5, marker={"opacity": 0.55}, showlegend=False, hovertemplate=hover),
                   dots("chosen", "", 15)], xaxis=axis("arrival, seconds from the start of the run"),
                  yaxis=axis("milliseconds", rangemode="tozero"))


def _bars() -> Figure:
    """Two bars, one above the other, each on its own axis; requests.js fills them."""
    return figure([], 330, barmode="stack", showlegend=True,
                  xaxis=axis("milliseconds to its first token", anchor="y", rangemode="tozero"),
                  xaxis2=axis("milliseconds from there to its last token", anchor="y2", rangemode="tozero"),
                  yaxis=axis(domain=[0.62, 1], anchor="x"), yaxis2=axis(domain=[0, 0.38], anchor="x2"))


def _controls() -> Markup:
    orders = (("arrival", "arrival"), ("ttft", "slowest TTFT"), ("tpot", "slowest TPOT"), ("e2el", "slowest E2EL"))
    options = (element("option", title, value=name) for name, title in orders)
    metrics = (element("option", name.upper(), value=name) for name in ("ttft", "tpot", "e2el", "queue"))
    return element(
        "form", element("label", "Request ", element("input", type="number", id="request-id", min=0, step=1,
                                                      inputmode="numeric", aria_describedby="request-help")),
        element("button", "Previous", type="button", id="request-previous"),
        element("button", "Next", type="button", id="request-next"),
        element("label", "in order of ", element("select", *options, id="request-order")),
        element("label", "drawn by ", element("select", *metrics, id="request-metric")),
        element("p", "Type a number, or use the arrow keys in the field.", id="request-help", cls="note"),
        cls="controls", id="request-form")


#: The most requests in the table.
_MOST = 100


def add_missed(document: Document, run: SavedRun) -> None:
    """Add how many requests missed, what took their time, and the worst of them."""
    title = "Requests that missed their targets"
    if not run.targets:
        document.section("missed", title, missing("The scenario sets no targets ([slo]), so nothing can be missed."))
    elif not run.completed.any():
        document.section("missed", title, missing("No request completed."))
    elif not run.missed.any():
        document.section("missed", title, element("p", "None: every completed request met all targets."))
    else:
        document.section("missed", title, *_counts(run), *_why(document, run), _worst(run))


def _counts(run: SavedRun) -> Iterator[Markup]:
    parts = [f"{int(late.sum()):,} of {int(run.completed.sum()):,} completed requests took longer than"
             f" {number(run.targets[name])} ms ({name.upper()})" for name, late in run.late.items() if late.any()]
    yield element("p", f"{'; '.join(parts)}.")


def _why(document: Document, run: SavedRun) -> Iterator[Any]:
    """For each target: the mean phases of those that missed and of those that met it."""
    if run.breakdown is None:
        yield missing(f"Why is not known: {STREAMED}.")
        return
    for name, late in run.late.items():
        several = run.breakdown.output > 1 if name == "tpot" else np.ones(len(run.breakdown.ids), bool)
        mine = late[run.phase_rows][several]
        if mine.any():
            seconds = by_group(run.breakdown.metric(name), run.breakdown.names)
            yield _figure(document, run, name, seconds, mine)


def _figure(document: Document, run: SavedRun, name: str, seconds: Floats, late: Bools) -> Markup:
    assert run.breakdown is not None
    titles = groups(run.breakdown.names)
    slow, fast = (1e3 * seconds[which].sum(axis=0) / max(which.sum(), 1) for which in (late, ~late))
    order = np.argsort(-slow, kind="stable").tolist()
    shown = [index for index in order if slow[index] + fast[index] > 0.01 * slow.sum()]
    first = Counter(titles[index] for index in seconds[late].argmax(axis=1).tolist()).most_common(1)[0]
    count = int(late.sum())
    caption = (f"{name.upper()}: mean milliseconds in each phase of the {count:,} request{'s' if count > 1 else ''}"
               f" over the target of {number(run.targets[name])} ms, beside all others. The largest phase of"
               f" {'all' if first[1] == count else f'{first[1]:,}'} of them is {first[0]}.")
    rows = [(titles[index], number(float(slow[index])), number(float(fast[index])),
             number(float(slow[index] - fast[index]))) for index in shown]
    bars = {"missed": slow[shown] / 1e3, **({"met": fast[shown] / 1e3} if (~late).any() else {})}
    drawn = breakdown_chart("", "", {"": bars}, [titles[index] for index in shown])
    return document.figure(f"missed-{name}", drawn, caption, ("phase, ms", ">missed", ">met", ">difference"), rows, 210)


def _worst(run: SavedRun) -> Markup:
    """The requests that are furthest over a target, by how many times."""
    over = np.stack([np.nan_to_num(run.latency(name)) / limit for name, limit in run.targets.items()])
    most, count = over.max(axis=0), int(run.missed.sum())
    order = np.argsort(-np.where(run.missed, most, -1.0), kind="stable")[: min(_MOST, count)]
    names, index = list(run.targets), {row: at for at, row in enumerate(run.phase_rows.tolist())}
    rows = [_row(run, row, names[over[:, row].argmax()], float(most[row]), index.get(row)) for row in order.tolist()]
    columns = ("request", ">arrival, s", *(f">{name.upper()}, ms" for name in run.targets), ">times the target",
               "missed most", "~mostly in", ">prompt", ">output")
    made = table(columns, rows, "Requests furthest over their targets first", sortable=True)
    left = note(f"The {len(rows)} worst are listed, {count - len(rows):,} more missed.") if count > len(rows) else None
    return element("div", element("div", made, cls="tall"), left)


def _row(run: SavedRun, row: int, name: str, over: float, index: int | None) -> list[Any]:
    requests, ident = run.requests, int(run.requests["id"][row])
    chosen = element("button", f"{ident}", type="button", cls="choose", data_request=ident,
                     aria_label=f"Show request {ident}")
    return [(chosen, ident), _sorted(float(requests["arrival_s"][row])),
            *(_sorted(float(run.latency(target)[row])) for target in run.targets), (f"{over:.2f}", over),
            name.upper(), _missed_phases(run, name, index),
            *(_sorted(int(requests[key][row])) for key in ("prompt_tokens", "output_tokens"))]


def _sorted(value: float) -> tuple[str, float]:
    return number(None if isnan(value) else value), value


def _missed_phases(run: SavedRun, name: str, index: int | None) -> str:
    """The phases of a request in which most of the latency *name* went."""
    if run.breakdown is None or index is None:
        return "-"
    parts = {"ttft": run.breakdown.to_first[index], "tpot": run.breakdown.after[index]}
    whole = run.breakdown.to_first[index] + run.breakdown.after[index]
    seconds = by_group(parts.get(name, whole), run.breakdown.names)
    return ", ".join(f"{title} {percent(share, 0)}" for title, share in _largest(seconds, groups(run.breakdown.names)))


def _largest(seconds: Floats, titles: Sequence[str], most: int = 3) -> list[tuple[str, float]]:
    """The groups with the most seconds that are more than a twentieth of all, and their shares."""
    whole = float(seconds.sum()) or 1.0
    order = np.argsort(-seconds, kind="stable")[:most].tolist()
    return [(titles[index], float(seconds[index]) / whole) for index in order if seconds[index] > 0.05 * whole]
