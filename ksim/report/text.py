"""The report of a run, for people."""

from collections.abc import Iterable, Mapping, Sequence
from math import isclose
from typing import Any

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from ksim.flow.events import TIERS
from ksim.flow.steps import BOUNDS
from ksim.report.pools_text import pool_tables
from ksim.report.tables import Cell, Column, Table, beside, pairs
from ksim.report.wording import Insight, endings, growing, number, outwards, percent
from ksim.results.kernels import HOST, IDLE, families
from ksim.results.metrics import LATENCIES, PERCENTILES, Summary
from ksim.results.steps import ratio

_BAR = 10
_TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Between two tokens",
    "e2el": "Arrival to last token",
    "queue": "In the queue",
}
#: The mark of latencies that grow with the run, if requests that wait became more and more.
_MARK = " !"
#: Families with a smaller share of the run are shown together.
_SMALL = 0.005
_TIERS = {"cpu": "the host", "disk": "disks", "storage": "storage"}
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
        beside(pairs("Throughput", _throughput(summary)), pairs("GPUs", _gpus(summary)),
               pairs("Cache", _cache(summary))),
        *pool_tables(summary),
        *energy_block(summary),
        _time_table(kernels),
        _notes(notes),
    )


def _headline(summary: Summary, labels: Mapping[str, Any], subject: str) -> RenderableType:
    plain = f"{labels.get('model_id', 'a model')} on {summary['gpus']} x {labels.get('gpu', 'GPU')}"
    text = Text(f"{subject or plain}\n", style="bold")
    counts = [f"{count:,} {word}" for count, word in endings(summary)]
    text.append(f"{', '.join(counts)} in {number(summary['duration'])} s of simulated time", style="not bold")
    return Group("", text, "")


def _latency_table(summary: Summary) -> Table:
    statistics = ("mean", *(f"p{percent}" for percent in PERCENTILES))
    table = Table((Column("Latency (ms)", least=21), Column("", least=4),
                   *(Column(statistic, number=True, least=7) for statistic in statistics)))
    for name in LATENCIES:
        values = (number(summary[f"{statistic}_{name}_ms"]) for statistic in statistics)
        marked = _MARK if name in growing(summary) else ""
        short = Text("" if name == "queue" else name.upper(), style="dim")
        table.add_row(_TITLES[name] + marked, short, *values)
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


def _throughput(summary: Summary) -> Iterable[tuple[str, str]]:
    yield "requests/s", number(summary["request_throughput"])
    if summary["offered_request_rate"] is not None:
        yield "  offered", number(summary["offered_request_rate"])
    if summary["request_goodput"] is not None:
        yield "  within targets", number(summary["request_goodput"])
        yield "  share of them", percent(summary["slo_attainment"])
    yield "output tokens/s", number(summary["output_throughput"])
    yield "all tokens/s", number(summary["total_token_throughput"])
    if "pools" in summary:
        yield "output t/s/GPU", number(summary["output_throughput_per_gpu"])
    if summary.get("request_goodput_per_gpu") is not None:
        yield "goodput/GPU", number(summary["request_goodput_per_gpu"])
    yield "in flight", number(summary["mean_concurrent_requests"])
    yield "  at most", number(summary["max_concurrent_requests"])


def _gpus(summary: Summary) -> Iterable[tuple[str, str]]:
    yield "busy", percent(summary["gpu_busy_share"])
    yield "waiting for CPU", percent(summary["host_share"])
    yield "of peak FLOP/s", percent(summary["mfu"])
    yield "of peak bytes/s", percent(summary["mbu"])
    yield "steps", number(summary["steps"])
    yield "tokens per step", number(summary["mean_batch_tokens"])
    if summary.get("spec_decode_num_drafts"):
        yield "drafts accepted", percent(summary["spec_decode_acceptance_rate"] / 100)
        yield "tokens per draft", number(summary["spec_decode_acceptance_length"])
    if "images" in summary:
        yield "images encoded", number(summary["images"])
        yield "  their tokens", number(summary["encoder_tokens"])


def _cache(summary: Summary) -> Iterable[tuple[str, str]]:
    yield "KV cache, mean", percent(summary["kv_cache_usage_mean"])
    yield "KV cache, peak", percent(summary["kv_cache_usage_peak"])
    yield "prefix hits", percent(summary["prefix_cache_hit_rate"])
    for tier in TIERS:
        if f"{tier}_hit_rate" in summary:
            yield f"  from {_TIERS[tier]}", percent(summary[f"{tier}_hit_rate"])
    if "kv_offload_load_bytes" in summary:
        yield "KV loaded, GB", number(1e-9 * summary["kv_offload_load_bytes"])
        yield "KV stored, GB", number(1e-9 * summary["kv_offload_store_bytes"])
    yield "preemptions", number(summary["preemptions"])
    if "max_lora" in summary:
        yield "adapter loads", number(summary["lora_loads"])
        yield "  from the disk", number(summary["lora_reads"])


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
    tables = [pairs("Energy", _whole(summary)), pairs("Energy, mean", _each(summary))]
    if costs := list(_costs(summary)):
        tables.append(pairs("Carbon and cost", costs))
    yield beside(*tables)
    yield Text(_remarks(summary), style="dim")


def _whole(summary: Summary) -> Iterable[tuple[str, str]]:
    total = summary["energy_joules"]
    yield "kJ of GPUs", number(total / 1e3)
    parts = {"  prefill": "prefill", "  decode": "decode", "  between steps": "idle", "static": "static"}
    for title, part in parts.items():
        yield title, percent(ratio(summary[f"{part}_energy_joules"], total))
    yield "average watts", number(summary["average_watts"])
    yield "output tokens/J", number(summary["tokens_per_joule"])


def _each(summary: Summary) -> Iterable[tuple[str, str]]:
    yield "J to 1st token", number(summary["mean_energy_to_first_token_joules"])
    yield "J/output token after it", number(summary["mean_energy_per_output_token_joules"])
    yield "J/request", number(summary["mean_energy_per_request_joules"])
    yield "  p99", number(summary["p99_energy_per_request_joules"])
    if summary["sessions"]:
        yield "J/session", number(summary["mean_energy_per_session_joules"])
    yield "J/output token in all", number(summary["joules_per_output_token"])


def _costs(summary: Summary) -> Iterable[tuple[str, str]]:
    titles = {"gCO2e": "carbon_grams", "  per request": "carbon_grams_per_request",
              "  1,000 output tokens": "carbon_grams_per_1k_output_tokens", "$ for energy": "energy_dollars",
              "$ for GPUs": "gpu_dollars", "$/M output tokens": "dollars_per_million_output_tokens"}
    for title, key in titles.items():
        if summary[key] is not None:
            yield title, number(summary[key])


def _remarks(summary: Summary) -> str:
    """The interval of the energy, and what it includes."""
    low, high = summary["energy_joules_low"], summary["energy_joules_high"]
    host, drawn = summary["host_energy_joules"], summary["facility_energy_joules"]
    said = [] if low is None else [f"90 % interval of the energy: {outwards(low / 1e3, high / 1e3)} kJ"]
    said.append(f"hosts and NICs take {number(host / 1e3)} kJ" if host else "hosts and NICs are not counted")
    if not isclose(summary["energy_joules"] + host, drawn, rel_tol=1e-12):
        said.append(f"{number(drawn / 1e3)} kJ from the grid, what the data centre takes included")
    return "; ".join(said)
