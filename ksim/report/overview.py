"""What a run's tables do not tell: its subject, insights and engines, and how much of the busiest links was in use."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from ksim.flow.events import EngineBuilt
from ksim.report.wording import Insight
from ksim.results.history import History
from ksim.results.link_use import busiest

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
