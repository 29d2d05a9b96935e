"""Requests that missed their targets, and why: the phases in which they spent more time than the others."""

from collections import Counter
from collections.abc import Iterator
from math import isnan
from typing import Any

import numpy as np

from ksim.page.charts import Figure, axis, figure, numbers, safe
from ksim.page.document import Document
from ksim.page.grouping import by_group, colour, largest
from ksim.page.markup import Markup, element, missing, note, table
from ksim.page.reading import STREAMED, Run
from ksim.report.wording import number, percent
from ksim.results.arrays import Bools, Floats
from ksim.results.attribution import groups

#: The most requests in the table.
_MOST = 100


def add(document: Document, run: Run) -> None:
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


def _counts(run: Run) -> Iterator[Markup]:
    parts = [f"{int(late.sum()):,} of {int(run.completed.sum()):,} completed requests took longer than"
             f" {number(run.targets[name])} ms ({name.upper()})" for name, late in run.late.items() if late.any()]
    yield element("p", f"{'; '.join(parts)}.")


def _why(document: Document, run: Run) -> Iterator[Any]:
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


def _figure(document: Document, run: Run, name: str, seconds: Floats, late: Bools) -> Markup:
    assert run.breakdown is not None
    titles = groups(run.breakdown.names)
    slow, fast = (1e3 * seconds[which].sum(axis=0) / max(which.sum(), 1) for which in (late, ~late))
    order = np.argsort(-slow, kind="stable").tolist()
    shown = [place for place in order if slow[place] + fast[place] > 0.01 * slow.sum()]
    first = Counter(titles[place] for place in seconds[late].argmax(axis=1).tolist()).most_common(1)[0]
    count = int(late.sum())
    caption = (f"{name.upper()}: mean milliseconds in each phase of the {count:,} request{'s' if count > 1 else ''}"
               f" over the target of {number(run.targets[name])} ms, beside all others. The largest phase of"
               f" {'all' if first[1] == count else f'{first[1]:,}'} of them is {first[0]}.")
    rows = [(titles[place], number(float(slow[place])), number(float(fast[place])),
             number(float(slow[place] - fast[place]))) for place in shown]
    drawn = _drawn([titles[place] for place in shown], slow[shown], fast[shown] if (~late).any() else None)
    return document.figure(f"missed-{name}", drawn, caption, ("phase, ms", ">missed", ">met", ">difference"), rows)


def _drawn(titles: list[str], slow: Floats, fast: Floats | None) -> Figure:
    bars = {"missed": slow, **({} if fast is None else {"met": fast})}
    traces = [{"type": "bar", "orientation": "h", "name": safe(title), "y": list(bars)[::-1],
               "x": numbers([float(values[place]) for values in bars.values()])[::-1],
               "marker": {"color": colour(title)},
               "hovertemplate": "%{x:,.4~g} ms of %{fullData.name}<extra>%{y}</extra>"}
              for place, title in enumerate(titles)]
    return figure(traces, 210, barmode="stack", xaxis=axis("milliseconds, mean", rangemode="tozero"), yaxis=axis())


def _worst(run: Run) -> Markup:
    """The requests that are furthest over a target, by how many times."""
    over = np.stack([np.nan_to_num(run.latency(name)) / limit for name, limit in run.targets.items()])
    most, count = over.max(axis=0), int(run.missed.sum())
    order = np.argsort(-np.where(run.missed, most, -1.0), kind="stable")[: min(_MOST, count)]
    names, place = list(run.targets), {row: at for at, row in enumerate(run.phase_rows.tolist())}
    rows = [_row(run, row, names[over[:, row].argmax()], float(most[row]), place.get(row)) for row in order.tolist()]
    columns = ("request", ">arrival, s", *(f">{name.upper()}, ms" for name in run.targets), ">times the target",
               "missed most", "~mostly in", ">prompt", ">output")
    made = table(columns, rows, "Requests furthest over their targets first", sortable=True)
    left = note(f"The {len(rows)} worst are listed, {count - len(rows):,} more missed.") if count > len(rows) else None
    return element("div", element("div", made, cls="tall"), left)


def _row(run: Run, row: int, name: str, over: float, place: int | None) -> list[Any]:
    requests, ident = run.requests, int(run.requests["id"][row])
    chosen = element("button", f"{ident}", type="button", cls="choose", data_request=ident,
                     aria_label=f"Show request {ident}")
    return [(chosen, ident), _sorted(float(requests["arrival_s"][row])),
            *(_sorted(float(run.latency(target)[row])) for target in run.targets), (f"{over:.2f}", over),
            name.upper(), _phases(run, name, place),
            *(_sorted(int(requests[key][row])) for key in ("prompt_tokens", "output_tokens"))]


def _sorted(value: float) -> tuple[str, float]:
    return number(None if isnan(value) else value), value


def _phases(run: Run, name: str, place: int | None) -> str:
    """The phases of a request in which most of the latency *name* went."""
    if run.breakdown is None or place is None:
        return "-"
    parts = {"ttft": run.breakdown.to_first[place], "tpot": run.breakdown.after[place]}
    whole = run.breakdown.to_first[place] + run.breakdown.after[place]
    seconds = by_group(parts.get(name, whole), run.breakdown.names)
    return ", ".join(f"{title} {percent(share, 0)}" for title, share in largest(seconds, groups(run.breakdown.names)))
