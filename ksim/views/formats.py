"""A run in other formats: the block that `vllm bench serve` prints, and HTML for notebooks.

Source of the block: vllm/benchmarks/serve.py at commit 009e6d4.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ksim.results.numbers import LATENCIES, NUMBERS, PERCENTILES, Summary
from ksim.views.pools_text import pool_rows
from ksim.views.tables import Table, notebook
from ksim.views.wording import Insight, endings, number, written

_WIDTH = 50
#: The numbers of a run in a notebook, as far as it has them.
_SHOWN = ("request_throughput", "request_goodput", "output_throughput", "gpu_busy_share", "kv_cache_usage_peak",
          "prefix_cache_hit_rate", "preemptions", "average_watts", "joules_per_output_token",
          "dollars_per_million_output_tokens")
_LATENCIES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
_COUNTS = (
    ("Successful requests:", "completed", ""),
    ("Failed requests:", "failed", ""),
    ("Maximum request concurrency:", "max_concurrency", ""),
    ("Request rate configured (RPS):", "request_rate", ".2f"),
    ("Benchmark duration (s):", "duration", ".2f"),
    ("Total input tokens:", "total_input_tokens", ""),
    ("Total generated tokens:", "total_output_tokens", ""),
    ("Request throughput (req/s):", "request_throughput", ".2f"),
    ("Request goodput (req/s):", "request_goodput", ".2f"),
    ("Output token throughput (tok/s):", "output_throughput", ".2f"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s", ".2f"),
    ("Peak concurrent requests:", "max_concurrent_requests", ".2f"),
    ("Total token throughput (tok/s):", "total_token_throughput", ".2f"),
)


def vllm_block(summary: Summary, labels: Mapping[str, Any] | None = None) -> str:
    """Return vLLM's "Serving Benchmark Result" block, label for label.

    `request_rate` and `max_concurrency` appear if *labels* has them, and goodput if targets are set.  If no request
    completed, vLLM prints a latency of zero; this prints nan.
    """
    known = {**(labels or {}), **summary}
    lines = [" Serving Benchmark Result ".center(_WIDTH, "=")]
    lines += [_line(label, known[key], style) for label, key, style in _COUNTS if _shown(known.get(key))]
    for name, title in _LATENCIES.items():
        lines += [title.center(_WIDTH, "-"), *_latency(summary, name)]
    return "\n".join([*lines, "=" * _WIDTH])


def _shown(value: Any) -> bool:
    return value is not None and value not in ("inf", float("inf"))


def _latency(summary: Summary, name: str) -> Iterator[str]:
    for statistic in ("mean", "median", "p99"):
        value = summary[f"{statistic}_{name}_ms"]
        yield _line(f"{statistic.title()} {name.upper()} (ms):", float("nan") if value is None else value, ".2f")


def _line(label: str, value: Any, style: str) -> str:
    return f"{label:<40} {value:<10{style}}"


def result_html(summary: Summary, notes: Sequence[Insight], labels: Mapping[str, Any]) -> str:
    """A run: its subject, latencies, throughput, energy, and insights."""
    title = f"{labels.get('model_id', 'a model')} on {summary['gpus']} x {labels.get('gpu', 'GPU')}"
    ended = ", ".join(f"{number(count)} {word}" for count, word in endings(summary))
    statistics = ("mean", *(f"p{each}" for each in PERCENTILES))
    latencies = [(name.upper(), *(number(summary[f"{statistic}_{name}_ms"]) for statistic in statistics))
                 for name in LATENCIES]
    pools = summary.get("pools", {})
    beside = [Table.of("pools", *(f">{name}" for name in pools), rows=pool_rows(pools))] if pools else []
    rows = [(NUMBERS[key].title, written(NUMBERS[key], summary[key])) for key in _SHOWN if summary[key] is not None]
    return notebook(title, f"{ended} in {number(summary['duration'])} s of simulated time",
                    Table.of("latency (ms)", *(f">{statistic}" for statistic in statistics), rows=latencies),
                    Table.of("run", ">", rows=rows), *beside, *(note.text for note in notes))
