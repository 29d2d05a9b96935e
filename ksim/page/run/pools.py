"""Fleets: the pools side by side, KV transfers between engines, and the busiest links."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any

import numpy as np

from ksim.page.charts import PALETTE, Figure, axis, figure, line
from ksim.page.document import Document
from ksim.page.markup import Markup, element, missing, table, told
from ksim.page.reading import Run
from ksim.report.pools_text import ROWS
from ksim.report.wording import measure, number, percent


def add(document: Document, run: Run) -> None:
    """Add the fleet; nothing for a run without pools."""
    if pools := run.summary.get("pools"):
        document.section("pools", "The fleet, by pool", _table(pools), *_transfers(run), _links(document, run))


def _table(pools: Mapping[str, Any]) -> Markup:
    rows = [[title, *(pool[key] for pool in pools.values())] for title, key in (("role", "role"), ("GPU", "gpu"))]
    rows += [[_title(place), *(told(pool.get(row.key), row.show(pool.get(row.key)), row.key, name)
                                   for name, pool in pools.items())]
             for place, row in enumerate(ROWS) if row.always or any(pool.get(row.key) for pool in pools.values())]
    return table(("", *(f">{name}" for name in pools)), rows, "Pools side by side")


def _title(place: int) -> str:
    """The title of a row; a p99 says of what."""
    title = ROWS[place].title
    return ROWS[place - 1].title.replace("mean", "p99") if title.strip() == "p99" else title.strip()


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
    drawn = _drawn(run, links["busiest"])
    return document.figure("links", drawn, caption, ("link", ">capacity", ">mean", ">peak"), rows)


def _drawn(run: Run, links: list[Mapping[str, Any]]) -> Figure:
    edges = np.linspace(0, run.duration, len(links[0]["use"]) + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    curves = [line(middles, 100 * np.array(link["use"]), link["name"], PALETTE[place % len(PALETTE)],
                   "%{y:.3~g} % at %{x:,.4~g} s<extra>%{fullData.name}</extra>", line={"width": 1.4},
                   visible=True if place < 4 else "legendonly") for place, link in enumerate(links)]
    return figure(curves, 340 + 22 * len(links), xaxis=axis("seconds from the start of the run"),
                  yaxis=axis("share of the link's capacity, %", rangemode="tozero"),
                  legend={"y": -0.2, "yanchor": "top"})
