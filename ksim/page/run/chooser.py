"""Any request of the run: its numbers, its phases, and its place among all others.

The page holds the columns of all requests, or where there are very many, of the slowest ones and of every n-th other.
"""

from math import isnan
from typing import Any

import numpy as np

from ksim.page.charts import BLUE, RED, Figure, axis, figure, numbers
from ksim.page.document import Document
from ksim.page.grouping import by_group, colour
from ksim.page.markup import Markup, element, missing, note
from ksim.page.reading import STREAMED, Run
from ksim.results.arrays import Floats, Ints
from ksim.results.attribution import groups

#: The most requests that a page holds, and how many of them are the slowest.
MOST, _SLOWEST = 8_000, 2_000
#: Columns in whole microseconds, for which a gzipped page has room.
_MICRO = {"arrival": "arrival_s", "queue": "queue_s", "ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s"}
_COUNTS = ("id", "engine", "prompt_tokens", "output_tokens", "cached_tokens", "preemptions")
_TEXTS = ("status", "reason", "session", "tenant")


def add(document: Document, run: Run) -> None:
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


def kept(run: Run) -> Ints:
    """The rows that the page holds, in order of arrival."""
    count = len(run.requests["id"])
    if count <= MOST:
        return np.arange(count)
    slow = np.argsort(-np.nan_to_num(run.latency("e2el")), kind="stable")[:_SLOWEST // 2]
    late = np.argsort(-np.nan_to_num(run.latency("ttft")), kind="stable")[:_SLOWEST // 2]
    return np.unique(np.concatenate([slow, late, np.linspace(0, count - 1, MOST - _SLOWEST).astype(np.int64)]))


def columns(run: Run, rows: Ints) -> dict[str, Any]:
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


def _phases(run: Run, rows: Ints) -> dict[str, Any] | None:
    """Microseconds of each group of phases, up to the first token and after it, of requests that have them."""
    if run.breakdown is None:
        return None
    place = np.full(len(run.requests["id"]), -1)
    place[run.phase_rows] = np.arange(len(run.phase_rows))
    there = place[rows]
    titles = groups(run.breakdown.names)
    parts = [by_group(seconds, run.breakdown.names)[there] for seconds in (run.breakdown.to_first, run.breakdown.after)]
    used = [at for at in range(len(titles)) if any(part[there >= 0, at].any() for part in parts)]
    return {"titles": [titles[at] for at in used], "colours": [colour(titles[at]) for at in used],
            "to_first": [_known(parts[0][:, at], there) for at in used],
            "after": [_known(parts[1][:, at], there) for at in used]}


def _known(seconds: Floats, there: Ints) -> list[int]:
    return [round(1e6 * value) if row >= 0 else 0 for value, row in zip(seconds.tolist(), there.tolist(), strict=True)]


def _places() -> Figure:
    """The requests in a plane; requests.js fills in the latency that is chosen."""
    dots = {"type": "scatter", "mode": "markers", "x": [], "y": [], "name": "requests", "showlegend": False,
            "marker": {"color": BLUE, "size": 5, "opacity": 0.55},
            "hovertemplate": "request %{customdata}<br>arrived %{x:,.4~g} s<br>%{y:,.4~g} ms<extra></extra>"}
    ring = {"type": "scatter", "mode": "markers", "x": [], "y": [], "name": "chosen", "showlegend": False,
            "hoverinfo": "skip",
            "marker": {"color": "rgba(0,0,0,0)", "size": 15, "line": {"color": RED, "width": 3}}}
    return figure([dots, ring], 320, xaxis=axis("arrival, seconds from the start of the run"),
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
