"""Engines of a tiny model that have nothing to do."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from ksim.engine.loop_times import Horizon
from ksim.flow.log import Log
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.assembly import build
from ksim.simulation.fleet import Fleet
from tests.laws.tiny import TINY


@cache
def idle_engines(count: int = 8) -> list[Any]:
    """So many engines, which are at rest."""
    return built({"router": "least_outstanding", "serve": {"data_parallel_size": count}}).engines


def built(table: dict[str, Any]) -> Any:
    """The cluster of a scenario of the tiny model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(TINY))
        scenario = Scenario.of({"model": str(path), "gpu": "h100", "workload": ANY_WORKLOAD, **table})
        return build(Fleet.of(scenario), Horizon(), Log(), lambda: None)
