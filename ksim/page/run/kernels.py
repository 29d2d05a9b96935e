"""Where the GPUs' time and energy went: kernel families, waiting and idle time."""

from collections.abc import Iterator
from typing import Any

from ksim.flow.kernels import BOUNDS
from ksim.page.charts import BLUE, ORANGE, Figure, axis, figure, numbers, safe
from ksim.page.document import Document
from ksim.page.markup import Markup, details, element, missing, table
from ksim.page.reading import STREAMED, Run
from ksim.page.run.answer import shown
from ksim.report.wording import number, outwards, percent
from ksim.results.kernels import HOST, IDLE, FamilyShare, families

_WAITING = {HOST: "waiting for the CPU", IDLE: "nothing to do"}
_MOST = 12


def add(document: Document, run: Run) -> None:
    """Add shares of time and energy by family, the numbers of the GPUs, and every kernel."""
    title, facts = "Where the GPUs' time and energy went", element("dl", *_facts(run), cls="facts")
    if run.kernels is None:
        document.section("kernels", title, missing(f"By kernel it is not known: {STREAMED}."), facts)
        return
    found = families(run.kernels)
    rows = [[_name(row), percent(row.time), percent(row.energy), number(row.joules + row.static)] for row in found]
    caption = (f"Share of the run's GPU time and of its energy by kernel family, static power included. The largest"
               f" {min(_MOST, len(found))} of {len(found)} are drawn.")
    drawn = document.figure("kernels", _drawn(found[:_MOST]), caption, ("family", ">time", ">energy", ">J"), rows)
    document.section("kernels", title, drawn, facts,
                     details(f"All {len(run.kernels)} kernels", table(*_every(run), "Kernels, most time first",
                                                                     sortable=True)))


def _name(row: FamilyShare) -> str:
    return _WAITING.get(row.family, row.family)


def _drawn(found: list[FamilyShare]) -> Figure:
    names = [safe(_name(row)) for row in found]
    bars = [_bar(title, names, [getattr(row, title) for row in found], colour)
            for title, colour in (("time", BLUE), ("energy", ORANGE))]
    return figure(bars, 110 + 40 * len(found), barmode="group", bargap=0.3, yaxis=axis(autorange="reversed"),
                  xaxis=axis("share of all, %", rangemode="tozero"))


def _bar(title: str, names: list[str], shares: list[float | None], colour: str) -> dict[str, Any]:
    return {"type": "bar", "orientation": "h", "name": title, "y": names, "marker": {"color": colour},
            "x": numbers([100 * (share or 0.0) for share in shares]),
            "hovertemplate": f"%{{x:.3~g}} % of the {title}<extra>%{{y}}</extra>"}


def _facts(run: Run) -> Iterator[Markup]:
    entries: list[tuple[str, str, Any]] = [
        ("GPUs busy", "gpu_busy_share", percent), ("waiting for the CPU", "host_share", percent),
        ("of peak FLOP/s (MFU)", "mfu", percent), ("of peak bytes/s (MBU)", "mbu", percent),
        ("steps", "steps", number), ("tokens per step", "mean_batch_tokens", number),
        ("ms per step", "mean_step_ms", number), ("KV cache, mean", "kv_cache_usage_mean", percent),
        ("KV cache, peak", "kv_cache_usage_peak", percent), ("prefix hits", "prefix_cache_hit_rate", percent),
        ("preemptions", "preemptions", number), ("J of prefill", "prefill_energy_joules", number),
        ("J of decode", "decode_energy_joules", number), ("J between steps", "idle_energy_joules", number)]
    for title, key, show in entries:
        yield element("div", element("dt", title), element("dd", shown(run.summary, key, show)))


def _every(run: Run) -> tuple[list[str], list[list[Any]]]:
    """All kernels: time, work, bound, and how close to the roofline."""
    assert run.kernels is not None
    rows = []
    for row in run.kernels.to_pylist():
        bound = max(BOUNDS, key=lambda name: row[f"{name}_share"] or 0.0) if row["launches"] else ""
        low, high = row["low_seconds"], row["high_seconds"]
        between = "" if low is None else outwards(low, high)
        rows.append([_WAITING.get(row["label"], row["label"]), row["family"],
                     *((number(row[key]), row[key]) for key in ("launches", "seconds")), between,
                     *((percent(row[key]), row[key]) for key in ("run_share", "flops_share", "bandwidth_share")),
                     (number(row["eta"]), row["eta"]), (number(row["joules"]), row["joules"]), bound,
                     row["heaviest_shape"] or ""])
    return ["kernel", "family", ">launches", ">s", ">90 %, s", ">of the run", ">of peak FLOP/s", ">of peak bytes/s",
            ">eta", ">J", "bound", "heaviest shape"], rows
