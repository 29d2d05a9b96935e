"""The pools of a run, side by side, for people.

What a run's tables do not tell: its subject, insights and engines, and how much of the busiest links was in use.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import Any

import numpy as np
from attrs import frozen

from ksim.flow.events import EngineBuilt
from ksim.report.tables import Column, Table
from ksim.report.tables import Row as TableRow
from ksim.report.wording import Insight, number, percent
from ksim.results.history import History
from ksim.results.link_use import busiest
from ksim.results.metrics import Summary

#: The pools in one table; more pools make more tables.
_BESIDE = 4


@frozen
class Row:
    """A number of pools: its title, its key, and how it is shown; rows that say nothing of any pool are left out."""

    title: str
    key: str
    show: Callable[[Any], str] = number
    always: bool = False


def _gigabytes(count: float) -> str:
    return number(count / 1e9)


ROWS = (
    Row("engines", "engines", always=True), Row("GPUs", "gpus", always=True),
    Row("requests/s", "request_throughput"), Row("prompt tokens/s", "input_throughput"),
    Row("output tokens/s", "output_throughput"), Row("TTFT in the pool, mean ms", "mean_ttft_ms"),
    Row("  p99", "p99_ttft_ms"), Row("TPOT, mean ms", "mean_tpot_ms"), Row("  p99", "p99_tpot_ms"),
    Row("in its queue, mean ms", "mean_queue_ms"), Row("  p99", "p99_queue_ms"),
    Row("  mean wait for room", "mean_room_ms"), Row("  mean KV transfer", "mean_xfer_time_ms"),
    Row("busy", "gpu_busy_share", percent, always=True), Row("waiting for CPU", "host_share", percent, always=True),
    Row("tokens per step", "mean_batch_tokens"), Row("sequences per step", "mean_batch_sequences"),
    Row("KV cache, mean", "kv_cache_usage_mean", percent), Row("KV cache, peak", "kv_cache_usage_peak", percent),
    Row("  held for readers", "kv_cache_held_mean", percent), Row("prefix hits", "prefix_cache_hit_rate", percent),
    Row("preemptions", "preemptions"), Row("failed", "num_failed"), Row("GB sent", "bytes_sent", _gigabytes),
    Row("GB received", "bytes_received", _gigabytes), Row("leases that ended", "num_kv_expired_reqs"),
    Row("average watts", "average_watts"), Row("J/prompt token", "joules_per_input_token"),
    Row("J/output token", "joules_per_output_token"),
    Row("$/M prompt tokens", "dollars_per_million_input_tokens"),
    Row("$/M output tokens", "dollars_per_million_output_tokens"),
)


def pool_tables(summary: Summary) -> Iterator[Table]:
    """Tables of all pools, up to four side by side; none for a run without pools."""
    pools = iter(summary.get("pools", {}).items())
    while some := dict(islice(pools, _BESIDE)):
        yield _table(some)


def _table(pools: dict[str, Summary]) -> Table:
    return Table((Column("Pools", least=22), *(Column(name, number=True) for name in pools)),
                 [TableRow(tuple(cells)) for cells in pool_rows(pools)])


def pool_rows(pools: Mapping[str, Summary]) -> Iterator[list[str]]:
    """The titles and numbers of these pools, of all rows that say something of one of them."""
    found = list(pools.values())
    yield ["role", *(pool["role"] for pool in found)]
    yield ["GPU", *(pool["gpu"] for pool in found)]
    for row in ROWS:
        if row.always or any(pool.get(row.key) for pool in found):
            yield [row.title, *(row.show(pool.get(row.key)) for pool in found)]


#: The most links that are told of, and the points of their curves.
_LINKS, _POINTS = 8, 240


def overview(history: History, subject: str, insights: Sequence[Insight]) -> dict[str, Any]:
    """The content of overview.json, from which `ksim report` draws what the other files do not have."""
    return {
        "subject": subject,
        "insights": [{"text": insight.text, "warning": insight.warning} for insight in insights],
        "engines": [_engine(built) for built in history.engines],
        "links": {"count": len(history.links), "busiest": _links(history)},
    }


def _engine(built: EngineBuilt) -> dict[str, Any]:
    limit = built.limit_watts if isfinite(built.limit_watts) else None
    return {"engine": built.engine, "name": built.name, "pool": built.pool, "role": built.role, "gpu": built.gpu,
            "gpus": built.ranks * built.stages, "kv_blocks": built.kv_blocks, "peak_flops": built.peak_flops,
            "peak_bandwidth": built.peak_bandwidth, "static_watts": built.static_watts, "limit_watts": limit}


def _links(history: History) -> list[dict[str, Any]]:
    """The busiest links: their capacity in bytes/s, and the share of it in use: mean, peak, and means over the run."""
    edges = np.linspace(0, history.duration or 1.0, _POINTS + 1)
    return [{"name": link.name, "capacity": link.capacity, "mean": link.mean, "peak": link.use.peak,
             "use": np.round(link.use.means(edges), 5).tolist()} for link in busiest(history, _LINKS)]
