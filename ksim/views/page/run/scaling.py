"""The section of a page on a fleet whose replicas come and go: their numbers over time, and each decision."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import isnan
from typing import Any

import numpy as np

from ksim.views.figures.scaling import ScaledMoments, scaling_chart
from ksim.views.page.document import Document, note, table
from ksim.views.page.over_time import saved_scaling
from ksim.views.page.reading import SavedRun
from ksim.views.tables import Markup
from ksim.views.wording import number, percent

#: Rows of the table that says what the figure does, and of decisions.
_ROWS, _DECISIONS = 12, 200


def add_scaling(document: Document, run: SavedRun) -> None:
    """Add replicas, cost, watts and the SLO over time, and the decisions; nothing for a fleet of one size."""
    if run.scaling is None:
        return
    moments = saved_scaling(run)
    caption = ("Replicas by state; those that start have GPUs, and cost. Requests count by when they arrived. Drag to"
               " zoom, double-click to go back.")
    height = 60 + 135 * (3 + len(moments.sizes.replicas) + (moments.kept is not None))
    document.section("scaling", "Autoscaling", document.figure(
        "scaling", scaling_chart(moments), caption, *_same(saved_scaling(run, _ROWS, _ROWS)), height=height),
        *_decisions(run))


def _same(moments: ScaledMoments) -> tuple[list[str], list[list[str]]]:
    """The same in a few rows of means."""
    edges = np.linspace(0, moments.end, _ROWS + 1)
    curves = {"requests/s": moments.arrived,
              **{f"{state}, {pool}": series.means(edges) for pool, states in moments.sizes.replicas.items()
                 for state, series in states.items()},
              **({"$/h": moments.cost.means(edges)} if moments.prices else
                 {f"GPUs, {pool}": series.means(edges) for pool, series in moments.sizes.gpus.items()}),
              "W": moments.watts}
    shares = [] if moments.kept is None else [[percent(None if isnan(share) else share)
                                               for share in moments.kept.tolist()]]
    columns = [[*map(number, values.tolist())] for values in curves.values()] + shares
    rows = [[f"{number(begin)} to {number(end)}", *cells] for (begin, end), *cells in zip(
        pairwise(edges.tolist()), *columns, strict=True)]
    return ["seconds", *(f">{name}" for name in curves), *([">within targets"] if shares else [])], rows


def _decisions(run: SavedRun) -> Iterator[Markup]:
    assert run.scaling is not None, "its replicas come and go"
    rows = run.scaling.to_pylist()
    if not rows:
        yield note("No autoscaler has asked for another size.")
        return
    columns = (">seconds", "pool", ">replicas", "~why", ">ready / starting / draining", ">running", ">waiting", ">held",
               ">KV cache", ">requests/s", ">TTFT, ms")
    yield table(columns, map(_decision, rows[:_DECISIONS]), "Decisions of autoscalers, and what they saw")
    if len(rows) > _DECISIONS:
        yield note(f"The first {_DECISIONS} of {len(rows):,} decisions; scaling.parquet has all of them.")


def _decision(row: Mapping[str, Any]) -> list[str]:
    ttft = row["ttft_s"]
    return [number(row["time_s"]), row["pool"], f"{row['before']} to {row['replicas']}", row["reason"],
            f"{row['ready']} / {row['starting']} / {row['draining']}", number(row["running"]), number(row["waiting"]),
            number(row["held"]), percent(row["kv_usage"]), number(row["request_rate"]),
            number(None if ttft is None else 1e3 * ttft)]
