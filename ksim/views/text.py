"""The report of a run, for people: on a console and in a notebook; and the block that `vllm bench serve` prints.

Source of the block: vllm/benchmarks/serve.py at commit 009e6d4.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isclose
from typing import Any

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from ksim.flow.steps import BOUNDS
from ksim.results.kernels import HOST, IDLE, families
from ksim.results.numbers import (
    IN_NOTEBOOKS,
    IN_VLLM_BLOCK,
    LATENCIES,
    NUMBERS,
    REPORTED,
    REPORTED_STATISTICS,
    Summary,
    latency_key,
    number_of,
)
from ksim.results.steps import ratio
from ksim.views.tables import (
    Cell,
    Column,
    Table,
    beside,
    group_rows,
    group_tables,
    groups_of,
    notebook,
    pairs,
    pool_rows,
    pool_tables,
)
from ksim.views.wording import Insight, endings, growing, listed, number, outwards, percent, written

_BAR = 10
#: The mark of latencies that grow with the run, if requests that wait became more and more.
_MARK = " !"
#: Families with a smaller share of the run are shown together.
_SMALL = 0.005
_WAITING = {HOST: "waiting for the CPU", IDLE: "nothing to do"}
_COLOURS = {"compute": "dark_orange", "memory": "dodger_blue2", "launch": "grey58", "communication": "medium_purple"}


def report(summary: Summary, kernels: pa.Table, notes: Sequence[Insight], labels: Mapping[str, Any],
           subject: str = "") -> RenderableType:
    """Lay out the report, for a rich console to print.

    *subject* is its title.  Without it, *labels* are, which may have the `model_id`, the `gpu` and more.
    """
    return Group(
        _headline(summary, labels, subject),
        _latency_table(summary),
        *_mark_explained(summary),
        _intervals(summary),
        beside(*(_block(summary, title) for title in ("Throughput", "GPUs", "Cache", *_scaled(summary)))),
        *pool_tables(summary),
        *group_tables(summary),
        *energy_block(summary),
        _time_table(kernels),
        _notes(notes),
    )


def _block(summary: Summary, title: str) -> Table:
    return pairs(title, listed(summary, REPORTED[title]))


def _scaled(summary: Summary) -> Iterable[str]:
    """The block of a fleet whose replicas come and go."""
    return ("Autoscaling",) if "replica_starts" in summary else ()


def _headline(summary: Summary, labels: Mapping[str, Any], subject: str) -> RenderableType:
    plain = f"{labels.get('model_id', 'a model')} on {summary['gpus']} x {labels.get('gpu', 'GPU')}"
    text = Text(f"{subject or plain}\n", style="bold")
    counts = [f"{count:,} {word}" for count, word in endings(summary)]
    text.append(f"{', '.join(counts)} in {number(summary['duration'])} s of simulated time", style="not bold")
    return Group("", text, "")


def _latency_table(summary: Summary) -> Table:
    table = Table((Column("Latency (ms)", least=21), Column("", least=4),
                   *(Column(statistic, number=True, least=7) for statistic in REPORTED_STATISTICS)))
    for name, title in LATENCIES.items():
        values = (number(summary[latency_key(name, statistic)]) for statistic in REPORTED_STATISTICS)
        marked = _MARK if name in growing(summary) else ""
        short = Text("" if name == "queue" else name.upper(), style="dim")
        table.add_row(title + marked, short, *values)
    return table


def _mark_explained(summary: Summary) -> Iterable[Text]:
    """The meaning of the mark on latencies of a saturated run."""
    if summary["saturated"]:
        yield Text(f"{_MARK.strip()} grows with the length of the run: more came than could be served", style="red")


def _intervals(summary: Summary) -> Text:
    """The intervals of latencies; empty if the oracle gives none."""
    ends = {f"{name.upper()} {statistic}": [summary[f"{statistic}_{name}_{side}_ms"] for side in ("low", "high")]
            for name in ("ttft", "tpot") for statistic in ("median", "p99")}
    said = [f"{title} {outwards(low, high)}" for title, (low, high) in ends.items() if low is not None]
    outside = summary["extrapolated_share"] or 0.0
    text = f"90 % intervals: {', '.join(said)}" if said else ""
    if said and outside:
        text += f"; {percent(outside)} of the kernels' time is extrapolated"
    return Text(text, style="dim")


def _time_table(kernels: pa.Table) -> Table:
    """Kernel families by time, waiting and idle time, and their shares of the energy."""
    table = Table((Column("GPU time", least=19), Column("share", number=True), Column(""),
                   Column("energy", number=True), Column("bound by"), Column("mostly", priority=1)))
    rows, every = families(kernels), kernels.to_pylist()
    small = [row for row in rows if row.time < _SMALL and row.family not in _WAITING]
    for row in rows:
        if row.family in _WAITING:
            table.add_row(Text(_WAITING[row.family], style="dim"), percent(row.time), bar(row.time, "grey37"),
                          percent(row.energy), "", "")
        elif row.time >= _SMALL or len(small) == 1:
            members = [member for member in every if member["family"] == row.family]
            drawn, *limits = _limits(row.time, members)
            table.add_row(row.family, percent(row.time), drawn, percent(row.energy), *limits)
    if len(small) > 1:
        time, energy = sum(row.time for row in small), sum(row.energy or 0.0 for row in small)
        table.add_row(f"{len(small)} others", percent(time), bar(time, "grey58"), percent(energy), "", "")
    return table


def _limits(share: float, members: Sequence[Mapping[str, Any]]) -> tuple[Cell, ...]:
    """The bar of a family, its bound, and its kernels that take most time."""
    seconds = sum(member["seconds"] for member in members)
    bounds = {bound: sum(member["seconds"] * member[f"{bound}_share"] for member in members) for bound in BOUNDS}
    bound = max(BOUNDS, key=lambda name: bounds[name])
    labels = ", ".join(str(member["label"]) for member in members[:2])
    limit = f"{bound} {percent(bounds[bound] / seconds, 0)}" if seconds else ""
    return bar(share, _COLOURS[bound]), limit, Text(labels, style="dim")


def bar(share: float, colour: str) -> Text:
    """A bar in steps of an eighth of a character."""
    eighths = round(8 * _BAR * min(share, 1.0))
    return Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), style=colour)


def _notes(notes: Sequence[Insight]) -> RenderableType:
    grid = Grid.grid(padding=(0, 1))
    for note in notes:
        style = "bold red" if note.warning else ""
        grid.add_row(Text("!" if note.warning else "*", style=style), Text(note.text, style=style))
    return grid


def energy_block(summary: Summary) -> Iterable[RenderableType]:
    """The energy, its kernels and its requests; emissions and cost where rates are stated."""
    costs = _block(summary, "Carbon and cost")
    yield beside(pairs("Energy", _energy(summary)), _block(summary, "Energy, mean"), *([costs] if costs.rows else []))
    yield Text(_remarks(summary), style="dim")


def _energy(summary: Summary) -> Iterable[tuple[str, str]]:
    yield from listed(summary, ["energy_joules"])
    for key in REPORTED["Energy"]:
        yield number_of(key).brief, percent(ratio(summary[key], summary["energy_joules"]))
    yield from listed(summary, ["average_watts", "tokens_per_joule"])


def _remarks(summary: Summary) -> str:
    """The interval of the energy, and what it includes."""
    low, high = summary["energy_joules_low"], summary["energy_joules_high"]
    host, drawn = summary["host_energy_joules"], summary["facility_energy_joules"]
    said = [] if low is None else [f"90 % interval of the energy: {outwards(low / 1e3, high / 1e3)} kJ"]
    said.append(f"hosts and NICs take {number(host / 1e3)} kJ" if host else "hosts and NICs are not counted")
    if not isclose(summary["energy_joules"] + host, drawn, rel_tol=1e-12):
        said.append(f"{number(drawn / 1e3)} kJ from the grid, what the data centre takes included")
    return "; ".join(said)


_WIDTH = 50
_LATENCIES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def vllm_block(summary: Summary, labels: Mapping[str, Any] | None = None) -> str:
    """Return vLLM's "Serving Benchmark Result" block, label for label.

    `request_rate` and `max_concurrency` appear if *labels* has them, and goodput if targets are set.  If no request
    completed, vLLM prints a latency of zero; this prints nan.
    """
    known = {**(labels or {}), **summary}
    lines = [" Serving Benchmark Result ".center(_WIDTH, "=")]
    lines += [_line(label, known[key], style) for label, key, style in IN_VLLM_BLOCK if _shown(known.get(key))]
    for name, title in _LATENCIES.items():
        lines += [title.center(_WIDTH, "-"), *_latency(summary, name)]
    return "\n".join([*lines, "=" * _WIDTH])


def _shown(value: Any) -> bool:
    return value is not None and value not in ("inf", float("inf"))


def _latency(summary: Summary, name: str) -> Iterator[str]:
    for statistic in ("mean", "median", "p99"):
        value = summary[latency_key(name, statistic)]
        yield _line(f"{statistic.title()} {name.upper()} (ms):", float("nan") if value is None else value, ".2f")


def _line(label: str, value: Any, style: str) -> str:
    return f"{label:<40} {value:<10{style}}"


def result_html(summary: Summary, notes: Sequence[Insight], labels: Mapping[str, Any]) -> str:
    """A run: its subject, latencies, throughput, energy, and insights."""
    title = f"{labels.get('model_id', 'a model')} on {summary['gpus']} x {labels.get('gpu', 'GPU')}"
    ended = ", ".join(f"{number(count)} {word}" for count, word in endings(summary))
    latencies = [(name.upper(), *(number(summary[latency_key(name, statistic)]) for statistic in REPORTED_STATISTICS))
                 for name in LATENCIES]
    pools = summary.get("pools", {})
    beside = [Table.of("pools", *(f">{name}" for name in pools), rows=pool_rows(pools))] if pools else []
    beside += [Table.of(key, *(f">{name}" for name in groups), rows=group_rows(groups))
               for key, groups in groups_of(summary).items()]
    rows = [(NUMBERS[key].title, written(NUMBERS[key], value)) for key in IN_NOTEBOOKS
            if (value := summary[key]) is not None]
    return notebook(title, f"{ended} in {number(summary['duration'])} s of simulated time",
                    Table.of("latency (ms)", *(f">{statistic}" for statistic in REPORTED_STATISTICS), rows=latencies),
                    Table.of("run", ">", rows=rows), *beside, *(note.text for note in notes))
