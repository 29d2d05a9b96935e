"""The pools of a run, side by side, for people.

What a run's tables do not tell: its subject, insights and engines, and how much of the busiest links was in use.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import Any

import numpy as np

from ksim.flow.events import EngineBuilt
from ksim.results.history import History
from ksim.results.numbers import NUMBERS, Number, Summary
from ksim.results.series import busiest
from ksim.views.tables import Column, Row, Table
from ksim.views.wording import Insight, written

#: The pools in one table; more pools make more tables.
_BESIDE = 4


#: The numbers of pools, and those that are shown even where they say nothing of any pool.
_SHOWN = (
    "engines", "gpus", "request_throughput", "input_throughput", "output_throughput", "mean_ttft_ms", "p99_ttft_ms",
    "mean_tpot_ms", "p99_tpot_ms", "mean_queue_ms", "p99_queue_ms", "mean_room_ms", "mean_xfer_time_ms",
    "gpu_busy_share", "host_share", "mean_batch_tokens", "mean_batch_sequences", "kv_cache_usage_mean",
    "kv_cache_usage_peak", "kv_cache_held_mean", "prefix_cache_hit_rate", "preemptions", "num_failed", "bytes_sent",
    "bytes_received", "num_kv_expired_reqs", "average_watts", "joules_per_input_token", "joules_per_output_token",
    "dollars_per_million_input_tokens", "dollars_per_million_output_tokens")
_ALWAYS = ("engines", "gpus", "gpu_busy_share", "host_share")


def pool_tables(summary: Summary) -> Iterator[Table]:
    """Tables of all pools, up to four side by side; none for a run without pools."""
    pools = iter(summary.get("pools", {}).items())
    while some := dict(islice(pools, _BESIDE)):
        yield _table(some)


def _table(pools: dict[str, Summary]) -> Table:
    return Table((Column("Pools", least=22), *(Column(name, number=True) for name in pools)),
                 [Row(tuple(cells)) for cells in pool_rows(pools)])


def pool_rows(pools: Mapping[str, Summary]) -> Iterator[list[str]]:
    """The titles and numbers of these pools, of all rows that say something of one of them."""
    found = list(pools.values())
    yield ["role", *(pool["role"] for pool in found)]
    yield ["GPU", *(pool["gpu"] for pool in found)]
    for row in pool_numbers(found):
        yield [row.title, *(written(row, pool.get(row.key)) for pool in found)]


def pool_numbers(pools: Iterable[Summary]) -> list[Number]:
    """The numbers that say something of one of these pools, in the order of tables."""
    return [NUMBERS[key] for key in _SHOWN if key in _ALWAYS or any(pool.get(key) for pool in pools)]


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
