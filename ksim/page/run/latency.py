"""Latency distributions of the completed requests, with their targets and intervals.

The run over time: requests, rates, tokens, KV cache and power.

Fleets: the pools side by side, KV transfers between engines, and the busiest links.

What the router chose, engine by engine, and what it saw of the engines then.

All settings of the run, those that were set first, and all numbers of its summary.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, pairwise
from math import isnan, log10
from typing import Any

import numpy as np
import pyarrow as pa

from ksim.foundation.errors import KsimError
from ksim.page import over_time
from ksim.page.document import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    RED,
    Document,
    Figure,
    Markup,
    area,
    axis,
    breakable,
    details,
    element,
    figure,
    label,
    line,
    missing,
    note,
    pale,
    rule,
    step_of,
    table,
    told,
)
from ksim.page.reading import Run
from ksim.page.run.lead import shown
from ksim.report.pools_text import pool_numbers
from ksim.report.run_directory import flat
from ksim.report.wording import measure, number, percent, written
from ksim.results.numbers import LATENCIES, PERCENTILES
from ksim.results.steps import Bools, Floats, Ints, sums

TITLES = {name: title if name == "queue" else f"{title} ({name.upper()})" for name, title in LATENCIES.items()}
#: Distributions that are drawn; gaps between tokens are in no table, so that only their percentiles are known.
_DRAWN = ("ttft", "tpot", "e2el", "queue")
_WIDE = 25.0


def add_latency(document: Document, run: Run) -> None:
    """Add the table of all latencies, and a distribution of each that is kept by request."""
    if not run.summary["completed"]:
        document.section("latency", "Latency", missing("No request completed, so there are no latencies."))
        return
    panels = [_panel(document, run, name) for name in _DRAWN]
    document.section("latency", "Latency", _table(run), *_remarks(run), element("div", *panels, cls="grid"))


def _table(run: Run) -> Markup:
    statistics = ("mean", *(f"p{share}" for share in PERCENTILES))
    rows = [[TITLES[name], *(shown(run.summary, f"{statistic}_{name}_ms") for statistic in statistics)]
            for name in LATENCIES]
    return table(("Latency, ms", *(f">{statistic}" for statistic in statistics)), rows,
                 "Latencies of completed requests in milliseconds")


def _remarks(run: Run) -> Iterator[Markup]:
    if run.summary.get("extrapolated_share"):
        yield note(shown(run.summary, "extrapolated_share", percent), " of the kernels' time is in shapes outside what"
                   " was measured. Intervals say how far kernels' times may be off; effects on batches and queues are"
                   " not included.")
    if run.breakdown is None:
        yield note("Percentiles of streamed runs are within 0.1 % of the exact values.")


def _panel(document: Document, run: Run, name: str) -> Markup | None:
    values = run.latency(name)
    values = values[~np.isnan(values)]
    if not len(values):
        return missing(f"{TITLES[name]}: no request has one.")
    limit = run.targets.get(name)
    met = "" if limit is None else f"; {percent(float((values <= limit).mean()))} within {number(limit)} ms, the target"
    caption = element("span", element("strong", TITLES[name]),
                      f": share of {len(values):,} requests that took at most so long{met}.")
    rows = [(f"p{share}", shown(run.summary, f"p{share}_{name}_ms")) for share in PERCENTILES]
    return document.figure(f"latency-{name}", _drawn(run, name, values, limit), caption, ("share", ">ms"), rows)


def _drawn(run: Run, name: str, values: Floats, limit: float | None) -> Figure:
    x, shares = step_of(values)
    curve = line(x, 100 * shares, "requests", BLUE, "%{y:.3~g} % within %{x:,.4~g} ms<extra></extra>", fill="tozeroy",
                 fillcolor=pale(BLUE, 0.10), line={"shape": "hv"} if len(x) <= 60 else {})
    marks = {share: run.summary[f"p{share}_{name}_ms"] for share in (50, 90, 99)}
    texts = [f"p{share} {number(value)}" for share, value in marks.items()]
    points = {"type": "scatter", "mode": "markers+text", "x": list(marks.values()), "y": list(marks), "text": texts,
              "name": "percentiles", "marker": {"color": BLUE, "size": 8}, "textposition": "bottom right",
              "textfont": {"size": 12, "color": INK}, "showlegend": False,
              "hovertemplate": "p%{y}: %{x:,.4~g} ms<extra></extra>"}
    low, high = float(x[min(2, len(x) - 1)]), float(x[-1])
    wide = low > 0 and high / low > _WIDE
    near = [limit] if limit is not None and limit < 20 * high else []
    return figure([curve, points], 300, xaxis=_across(wide, float(x[0]), max(high, *near, 0.0), low), showlegend=False,
                  yaxis=axis("share of requests, %", range=[0, 103]), shapes=[*_bands(run, name), *map(rule, near)],
                  annotations=[_target(target, wide) for target in near])


def _across(wide: bool, first: float, last: float, low: float) -> dict[str, Any]:
    """The axis of milliseconds, with room on the right for the name of the p99."""
    if not wide:
        return axis("milliseconds", range=[0, 1.3 * last or 1.0])
    left = log10(max(0.8 * first, 0.5 * low))
    return axis("milliseconds (logarithmic)", type="log", range=[left, left + 1.28 * (log10(last) - left)], dtick=1)


def _target(limit: float, wide: bool) -> dict[str, Any]:
    return label(f"target {number(limit)}", log10(limit) if wide else limit, 0.03, yref="paper", xanchor="right",
                 yanchor="bottom", xshift=-4, font={"size": 12, "color": RED})


def _bands(run: Run, name: str) -> Iterator[dict[str, Any]]:
    """The intervals of the median and the p99, at their height."""
    for statistic, share in (("median", 50), ("p99", 99)):
        low, high = (run.summary.get(f"{statistic}_{name}_{side}_ms") for side in ("low", "high"))
        if low is not None:
            yield {"type": "line", "x0": low, "x1": high, "y0": share, "y1": share,
                   "line": {"color": PURPLE, "width": 5}, "opacity": 0.55}


#: Points of a curve, and bins for requests, of which there are far fewer than tokens.
POINTS, _REQUEST_BINS = 480, 96
_TABLE_ROWS = 12
_HOVER = "%{y:,.4~g} at %{x:,.4~g} s"


def add_timeline(document: Document, run: Run) -> None:
    """Add five panels, one above the other, over the same seconds."""
    panels = _panels(run, np.linspace(0, run.duration, POINTS + 1))
    coarse = np.linspace(0, run.duration, _TABLE_ROWS + 1)
    caption = (f"Each point is the mean over {number(run.duration / POINTS)} s, of offered and served requests over"
               f" {number(run.duration / _REQUEST_BINS)} s. Drag to zoom, double-click to go back.")
    document.section("timeline", "The run over time",
                     document.figure("timeline", _stacked(run, panels), caption, *_timeline_table(run, coarse)),
                     *_timeline_remarks(run))


Panels = Mapping[str, Sequence[tuple[str, Floats, str]]]


def _panels(run: Run, edges: Floats) -> Panels:
    """The curves of each panel by its axis title: name, values between *edges*, and colour."""
    rough = max(1, (len(edges) - 1) * _REQUEST_BINS // POINTS)
    return {
        "requests": [("running", over_time.running(run).means(edges), BLUE),
                     ("waiting", over_time.waiting(run).means(edges), ORANGE)],
        "requests/s": [("offered", over_time.arrivals(run, rough, edges), PURPLE),
                       ("served", over_time.completions(run, rough, edges), GREEN)],
        "output tokens/s": [("output tokens/s", over_time.tokens(run, edges), GREEN)],
        "KV cache, %": [*_coloured(over_time.kv_usage(run, edges), "KV cache", PURPLE)],
        "W per GPU": [*_coloured(over_time.watts(run, edges), "W per GPU", ORANGE)],
    }


def _coloured(curves: Mapping[str, Floats], name: str, colour: str) -> Iterator[tuple[str, Floats, str]]:
    """A curve for each pool, or one of this *name* and *colour*."""
    for (pool, values), own in zip(curves.items(), cycle(PALETTE), strict=False):
        yield (f"{name}, {pool}", values, own) if pool else (name, values, colour)


def _stacked(run: Run, panels: Panels) -> Figure:
    """A panel below the other, each with a legend of its own where it has several curves."""
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}
    height = 1 / len(panels)
    for place, (title, curves) in enumerate(panels.items()):
        own, top = "" if place == 0 else str(place + 1), 1 - place * height - 0.03
        layout[f"yaxis{own}"] = axis(title, domain=[top - height + 0.06, top], rangemode="tozero", anchor="x", nticks=5)
        layout[f"legend{own}"] = {"orientation": "h", "x": 1, "xanchor": "right", "y": top, "yanchor": "bottom",
                                  "font": {"color": INK}, "traceorder": "normal"}
        places = {"yaxis": f"y{own}", "legend": f"legend{own}", "showlegend": len(curves) > 1}
        traces += [_curve(run, *curve, len(curves) > 1, places) for curve in curves]
    layout["xaxis"] = axis("seconds from the start of the run", anchor=f"y{len(panels)}", range=[0, run.duration],
                           showspikes=True, spikemode="across", spikethickness=1, spikecolor=FAINT, spikedash="dot")
    return figure(traces, 860, **layout)


def _curve(run: Run, name: str, values: Floats, colour: str, among: bool, places: Mapping[str, Any]) -> dict[str, Any]:
    """A curve through the means of equal parts of the run, over a pale area unless it is *among* others."""
    edges = np.linspace(0, run.duration, len(values) + 1)
    return (line if among else area)((edges[:-1] + edges[1:]) / 2, values, name, colour,
                                     f"{_HOVER}<extra>%{{fullData.name}}</extra>", line={"width": 1.6}, **places)


def _timeline_table(run: Run, edges: Floats) -> tuple[list[str], list[list[str]]]:
    """The same in a few rows."""
    curves = [curve for panel in _panels(run, edges).values() for curve in panel]
    rows = [[f"{number(float(begin))} to {number(float(end))}",
             *(number(float(values[place * len(values) // (len(edges) - 1)])) for _, values, _ in curves)]
            for place, (begin, end) in enumerate(pairwise(edges))]
    return ["seconds", *(f">{name}" for name, _, _ in curves)], rows


def _timeline_remarks(run: Run) -> Iterator[Any]:
    if run.summary["preemptions"]:
        yield note("Preempted requests count as running until they end.")
    if not run.engines:
        yield note("The share of the KV cache follows from its peak in summary.json, as if all engines had as many"
                   " blocks.")


def add_pools(document: Document, run: Run) -> None:
    """Add the fleet; nothing for a run without pools."""
    if pools := run.summary.get("pools"):
        document.section("pools", "The fleet, by pool", _pools_table(pools), *_transfers(run), _links(document, run))


def _pools_table(pools: Mapping[str, Any]) -> Markup:
    rows = [[title, *(pool[key] for pool in pools.values())] for title, key in (("role", "role"), ("GPU", "gpu"))]
    rows += [[row.title, *(told(pool.get(row.key), written(row, pool.get(row.key)), row.key, name)
                           for name, pool in pools.items())] for row in pool_numbers(pools.values())]
    return table(("", *(f">{name}" for name in pools)), rows, "Pools side by side")


def _transfers(run: Run) -> Iterator[Markup]:
    """What went from engine to engine."""
    requests = run.requests
    if "prefill_engine" not in requests or np.isnan(requests["prefill_engine"].astype(float)).all():
        return
    sent: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for source, engine, count, seconds in zip(*(requests[name].astype(float).tolist() for name in (
            "prefill_engine", "engine", "transfer_bytes", "transfer_seconds")), strict=True):
        if not isnan(count) and not isnan(source):
            sent[int(source), int(engine)].append((count, seconds))
    rows = [[f"engine {source} to engine {engine}", number(len(found)), measure(sum(count for count, _ in found), "B"),
             number(1e3 * float(np.mean([seconds for _, seconds in found]))),
             measure(sum(count for count, _ in found) / max(sum(seconds for _, seconds in found), 1e-12), "B/s")]
            for (source, engine), found in sorted(sent.items())]
    columns = ("from engine to engine", ">requests", ">KV", ">mean ms", ">while it moves")
    yield table(columns, rows, "KV transfers between engines")


def _links(document: Document, run: Run) -> Markup:
    links = run.overview.get("links")
    if not links:
        return missing("The use of links is not known: the run was streamed, or written by an older ksim.")
    if not links["busiest"]:
        return element("p", "No link was used.")
    caption = (f"The busiest of {links['count']:,} links, each in its own direction: share of its capacity in use, each"
               f" point the mean over {number(run.duration / len(links['busiest'][0]['use']))} s.")
    rows = [[link["name"], measure(link["capacity"], "B/s"), percent(link["mean"]), percent(link["peak"])]
            for link in links["busiest"]]
    drawn = _pools_drawn(run, links["busiest"])
    return document.figure("links", drawn, caption, ("link", ">capacity", ">mean", ">peak"), rows)


def _pools_drawn(run: Run, links: list[Mapping[str, Any]]) -> Figure:
    edges = np.linspace(0, run.duration, len(links[0]["use"]) + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    curves = [line(middles, 100 * np.array(link["use"]), link["name"], PALETTE[place % len(PALETTE)],
                   "%{y:.3~g} % at %{x:,.4~g} s<extra>%{fullData.name}</extra>", line={"width": 1.4},
                   visible=True if place < 4 else "legendonly") for place, link in enumerate(links)]
    return figure(curves, 340 + 22 * len(links), xaxis=axis("seconds from the start of the run"),
                  yaxis=axis("share of the link's capacity, %", rangemode="tozero"),
                  legend={"y": -0.2, "yanchor": "top"})


#: What is shown of engines at the moments when they were chosen: columns of routing.parquet, and their titles.
_SEEN = {"outstanding": "outstanding", "waiting": "waiting", "running": "running", "kv_usage": "KV usage",
         "prefix_hit_tokens": "tokens cached"}


def add_routing(document: Document, run: Run) -> None:
    """Add the choices of a router that looks at engines; other runs have none."""
    routing = run.routing
    if routing is None or not len(routing):
        return
    seen = [name for name in _SEEN if name in routing.column_names]
    columns = ("engine", ">requests", ">of all", *(f">{_SEEN[name]}, chosen / mean" for name in seen))
    document.section("routing", "The router, by engine",
                     table(columns, _rows(routing, seen), "What was chosen, and what was seen of it"),
                     note("What the router saw of an engine on average when it chose it, and over all choices. Metrics"
                          " are those of the last scrape that had arrived."))


def _rows(routing: pa.Table, seen: list[str]) -> Iterator[list[Markup | str]]:
    offered, chosen = _offered(routing)
    means = {name: (_means(offered, values, chosen), _means(offered, values, np.ones_like(chosen)))
             for name in seen for values in [_flat(routing, name)]}
    for engine in np.unique(offered).tolist():
        count = int(chosen[offered == engine].sum())
        yield [f"engine {engine}", number(count), percent(count / len(routing)),
               *(f"{number(own[engine])} / {number(mean[engine])}" for own, mean in means.values())]


def _offered(routing: pa.Table) -> tuple[Ints, Bools]:
    """The engines of all choices, one after the other, and which were chosen."""
    lists = routing["engines"].combine_chunks()
    owners = np.repeat(np.arange(len(routing)), np.diff(lists.offsets.to_numpy()))
    offered = lists.flatten().to_numpy()
    chosen = offered == routing["engine"].to_numpy()[owners]
    prefill = routing["prefill_engine"].combine_chunks().fill_null(-1).to_numpy()
    return offered, chosen | (offered == prefill[owners])


def _flat(routing: pa.Table, name: str) -> Floats:
    """The numbers of a column of lists, one after the other; nan where the router did not ask."""
    values = routing[name].combine_chunks().flatten()
    return np.asarray(values.to_numpy(zero_copy_only=False), np.float64)


def _means(engines: Ints, values: Floats, which: Bools) -> dict[int, float | None]:
    """The mean of those *values* that are known, by engine."""
    known = np.asarray(which, bool) & ~np.isnan(values)
    most = int(engines.max()) + 1
    counts, totals = sums(engines[known], np.ones(int(known.sum())), most), sums(engines[known], values[known], most)
    return {engine: float(totals[engine] / counts[engine]) if counts[engine] else None for engine in range(most)}


#: Keys that say what is simulated, set or not.
_SUBJECT = ("model", "gpu", "system", "nodes", "workload", "slo", "pools")


def add_settings(document: Document, run: Run) -> None:
    """Add the settings that were set, those that are defaults, the file, and all numbers."""
    if not run.settings:
        document.section("settings", "Settings and numbers", missing("scenario.toml is missing."), _numbers(run))
        return
    usual = defaults(run)
    chosen = {key: value for key, value in run.settings.items()
              if usual is None or key.split(".")[0] in _SUBJECT or key not in usual or usual[key] != value}
    rest = {key: value for key, value in run.settings.items() if key not in chosen}
    title = "Settings" if usual is None else "What the scenario sets"
    why = note("Which of them are defaults cannot be told here: a plug-in or a file that the scenario names is missing."
               ) if usual is None else note("Values that equal the default count as defaults.")
    document.section(
        "settings", "Settings and numbers", _settings_table(title, chosen), why,
        details(f"{len(rest)} settings at their defaults", _settings_table("Defaults", rest)) if rest else None,
        details("scenario.toml", element("pre", element("code", run.scenario), tabindex="0")), _numbers(run))


def defaults(run: Run) -> Mapping[str, Any] | None:
    """The settings of a scenario that names the same model and GPU, and nothing else; None if it cannot be made."""
    from ksim.scenario.defaults import Deployment
    from ksim.scenario.scenario import ANY_WORKLOAD, Scenario

    same = {key: run.settings[key] for key in ("model", "gpu", "system", "nodes", "engine") if key in run.settings}
    try:
        text = Deployment.of(Scenario.of({**same, "workload": ANY_WORKLOAD})).scenario.to_toml()
    except KsimError:
        return None
    return flat(text)


def _settings_table(title: str, settings: Mapping[str, Any]) -> Markup:
    return table(("setting", "value"), [[breakable(key), _shown(value)] for key, value in settings.items()], title)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _numbers(run: Run) -> Markup:
    return details("All numbers of summary.json", table(("key", ">value"), _every(run.summary), "Numbers of the run"))


def _every(summary: Mapping[str, Any], pool: str | None = None) -> Iterator[list[Any]]:
    for key, value in summary.items():
        if key == "pools":
            for name, part in value.items():
                yield from _every(part, name)
        else:
            yield [f"pools.{pool}.{key}" if pool else key, told(value, _shown(value), key, pool)]
