"""The sections of a page on requests: latencies, the run over time, pools, transfers, routing, and all settings."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import isnan
from typing import Any

import numpy as np
import pyarrow as pa

from ksim.foundation.errors import KsimError
from ksim.results.numbers import LATENCIES, PERCENTILES, REPORTED_STATISTICS, latency_key, pool_numbers
from ksim.results.steps import Bools, Floats, Ints, sums
from ksim.views.charts import Chart
from ksim.views.figures.run import TITLES, LinkCurve, Moments, distribution, links_chart, over_time
from ksim.views.page.document import Document, details, missing, note, table, told
from ksim.views.page.over_time import saved_moments
from ksim.views.page.reading import SavedRun
from ksim.views.page.run.lead import shown
from ksim.views.run_directory import flat
from ksim.views.tables import Markup, breakable, element, group_rows, groups_of
from ksim.views.wording import measure, number, percent, written

#: Distributions that are drawn; gaps between tokens are in no table, so that only their percentiles are known.
_DRAWN = ("ttft", "tpot", "e2el", "queue")


def add_latency(document: Document, run: SavedRun) -> None:
    """Add the table of all latencies, and a distribution of each that is kept by request."""
    if not run.summary["completed"]:
        document.section("latency", "Latency", missing("No request completed, so there are no latencies."))
        return
    panels = [_panel(document, run, name) for name in _DRAWN]
    document.section("latency", "Latency", _table(run), *_remarks(run), element("div", *panels, cls="grid"))


def _table(run: SavedRun) -> Markup:
    rows = [[TITLES[name], *(shown(run.summary, latency_key(name, statistic)) for statistic in REPORTED_STATISTICS)]
            for name in LATENCIES]
    return table(("Latency, ms", *(f">{statistic}" for statistic in REPORTED_STATISTICS)), rows,
                 "Latencies of completed requests in milliseconds")


def _remarks(run: SavedRun) -> Iterator[Markup]:
    if run.summary.get("extrapolated_share"):
        yield note(shown(run.summary, "extrapolated_share", percent), " of the kernels' time is in shapes outside what"
                   " was measured. Intervals say how far kernels' times may be off; effects on batches and queues are"
                   " not included.")
    if run.breakdown is None:
        yield note("Percentiles of streamed runs are within 0.1 % of the exact values.")


def _panel(document: Document, run: SavedRun, name: str) -> Markup | None:
    values = run.latency(name)
    values = values[~np.isnan(values)]
    if not len(values):
        return missing(f"{TITLES[name]}: no request has one.")
    caption = element("span", element("strong", TITLES[name]),
                      f": share of {len(values):,} requests that took at most so long.")
    rows = [(f"p{share}", shown(run.summary, latency_key(name, f"p{share}"))) for share in PERCENTILES]
    panel = distribution(name, values, run.targets.get(name), run.summary)
    return document.figure(f"latency-{name}", Chart("", [panel]), caption, ("share", ">ms"), rows, 300)


_TABLE_ROWS = 12


def add_timeline(document: Document, run: SavedRun) -> None:
    """Add five panels, one above the other, over the same seconds."""
    moments = saved_moments(run)
    caption = (f"Each point is the mean over {number(run.duration / len(moments.tokens))} s, of offered and served"
               f" requests over {number(run.duration / len(moments.rates['offered']))} s. Drag to zoom, double-click to"
               " go back.")
    document.section("timeline", "The run over time", document.figure(
        "timeline", over_time(moments), caption, *_timeline_table(saved_moments(run, _TABLE_ROWS, _TABLE_ROWS)),
        height=860), *_timeline_remarks(run))


def _timeline_table(moments: Moments) -> tuple[list[str], list[list[str]]]:
    """The same in a few rows."""
    curves = {**moments.requests, **{f"{name}/s": values for name, values in moments.rates.items()},
              "output tokens/s": moments.tokens,
              **{f"KV cache, %{f', {pool}' * bool(pool)}": 100 * values for pool, values in moments.kv.items()},
              **{f"W per GPU{f', {pool}' * bool(pool)}": values for pool, values in moments.watts.items()}}
    edges = np.linspace(0, moments.end, _TABLE_ROWS + 1).tolist()
    rows = [[f"{number(begin)} to {number(end)}", *(number(float(values[index])) for values in curves.values())]
            for index, (begin, end) in enumerate(pairwise(edges))]
    return ["seconds", *(f">{name}" for name in curves)], rows


def _timeline_remarks(run: SavedRun) -> Iterator[Any]:
    if run.summary["preemptions"]:
        yield note("Preempted requests count as running until they end.")
    if not run.engines:
        yield note("The share of the KV cache follows from its peak in summary.json, as if all engines had as many"
                   " blocks.")


def add_pools(document: Document, run: SavedRun) -> None:
    """Add the fleet; nothing for a run without pools."""
    if pools := run.summary.get("pools"):
        document.section("pools", "The fleet, by pool", _pools_table(pools), *_transfers(run), _links(document, run))


def add_groups(document: Document, run: SavedRun) -> None:
    """Add workloads, models and tenants; nothing for a run without a mix."""
    if groups := groups_of(run.summary):
        document.section("workloads", "Requests, by whose they are", *(
            table((key, *(f">{name}" for name in rows)),
                  [*group_rows(rows)], f"{key.title()} side by side") for key, rows in groups.items()))


def _pools_table(pools: Mapping[str, Any]) -> Markup:
    rows = [[title, *(pool[key] for pool in pools.values())] for title, key in (("role", "role"), ("GPU", "gpu"))]
    rows += [[row.title, *(told(pool.get(row.key), written(row, pool.get(row.key)), row.key, name)
                           for name, pool in pools.items())] for row in pool_numbers(pools.values())]
    return table(("", *(f">{name}" for name in pools)), rows, "Pools side by side")


def _transfers(run: SavedRun) -> Iterator[Markup]:
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


def _links(document: Document, run: SavedRun) -> Markup:
    links = run.overview.get("links")
    if not links:
        return missing("The use of links is not known: the run was streamed, or written by an older ksim.")
    if not links["busiest"]:
        return element("p", "No link was used.")
    shown = [LinkCurve(each["name"], each["capacity"], each["mean"], each["peak"], np.array(each["use"]))
             for each in links["busiest"]]
    caption = (f"The busiest of {links['count']:,} links, each in its own direction: share of its capacity in use, each"
               f" point the mean over {number(run.duration / len(shown[0].use))} s.")
    rows = [[link.name, measure(link.capacity, "B/s"), percent(link.mean), percent(link.peak)] for link in shown]
    return document.figure("links", links_chart("", shown, links["count"], run.duration), caption,
                           ("link", ">capacity", ">mean", ">peak"), rows, 90 + 110 * len(shown))


#: What is shown of engines at the moments when they were chosen: columns of routing.parquet, and their titles.
_SEEN = {"outstanding": "outstanding", "waiting": "waiting", "running": "running", "kv_usage": "KV usage",
         "prefix_hit_tokens": "tokens cached"}


def add_routing(document: Document, run: SavedRun) -> None:
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


def add_settings(document: Document, run: SavedRun) -> None:
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


def defaults(run: SavedRun) -> Mapping[str, Any] | None:
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


def _numbers(run: SavedRun) -> Markup:
    return details("All numbers of summary.json", table(("key", ">value"), _every(run.summary), "Numbers of the run"))


def _every(summary: Mapping[str, Any], pool: str | None = None) -> Iterator[list[Any]]:
    for key, value in summary.items():
        if key == "pools":
            for name, part in value.items():
                yield from _every(part, name)
        else:
            yield [f"pools.{pool}.{key}" if pool else key, told(value, _shown(value), key, pool)]
