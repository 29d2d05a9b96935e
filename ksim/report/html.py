"""Results as notebooks show them: small tables with all text escaped."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ksim.report.insights import Insight
from ksim.report.wording import number, percent
from ksim.results.metrics import LATENCIES, PERCENTILES, Summary

_RIGHT = ' style="text-align: right"'


def block(title: str, *parts: str) -> str:
    """A titled block of *parts*: tables made by `table`, and texts."""
    inner = "".join(part if part.startswith("<table") else f"<p>{escape(part)}</p>" for part in parts if part)
    return f"<div><p><b>{escape(title)}</b></p>{inner}</div>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; columns whose name begins with ">" are numbers."""
    styles = [_RIGHT if column.startswith(">") else "" for column in columns]
    head = _row("th", styles, [column.removeprefix(">") for column in columns])
    body = "".join(_row("td", styles, cells) for cells in rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _row(tag: str, styles: Sequence[str], cells: Sequence[str]) -> str:
    inner = "".join(f"<{tag}{style}>{escape(cell)}</{tag}>" for style, cell in zip(styles, cells, strict=True))
    return f"<tr>{inner}</tr>"


def result_html(summary: Summary, notes: Sequence[Insight], labels: Mapping[str, Any]) -> str:
    """A run: its subject, latencies, throughput, energy, and insights."""
    title = f"{labels.get('model_id', 'a model')} on {summary['gpus']} x {labels.get('gpu', 'GPU')}"
    ended = ", ".join(f"{number(summary[key])} {word}" for key, word in (
        ("completed", "requests completed"), ("failed", "rejected"), ("unfinished", "unfinished"))
        if summary[key] or key == "completed")
    statistics = ("mean", *(f"p{each}" for each in PERCENTILES))
    latencies = [(name.upper(), *(number(summary[f"{statistic}_{name}_ms"]) for statistic in statistics))
                 for name in LATENCIES]
    return block(title, f"{ended} in {number(summary['duration'])} s of simulated time",
                 table(("latency (ms)", *(f">{statistic}" for statistic in statistics)), latencies),
                 table(("run", ">"), _numbers(summary)), *(note.text for note in notes))


def _numbers(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "requests/s", number(summary["request_throughput"])
    if summary["request_goodput"] is not None:
        yield "requests/s within targets", number(summary["request_goodput"])
    yield "output tokens/s", number(summary["output_throughput"])
    yield "GPUs busy", percent(summary["gpu_busy_share"])
    yield "KV cache, peak", percent(summary["kv_cache_usage_peak"])
    yield "prefix hits", percent(summary["prefix_cache_hit_rate"])
    yield "preemptions", number(summary["preemptions"])
    yield "average watts", number(summary["average_watts"])
    yield "J/output token", number(summary["joules_per_output_token"])
    if summary["dollars_per_million_output_tokens"] is not None:
        yield "$/M output tokens", number(summary["dollars_per_million_output_tokens"])
