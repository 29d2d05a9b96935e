"""What a text leaves to its engines: the values that they fill in, as far as these change the answer."""

from collections.abc import Mapping
from typing import Any

from ksim.deploy.launches import Note
from ksim.simulation.defaults import Defaults
from ksim.simulation.deployment import Deployment
from ksim.simulation.fleet import Fleet
from ksim.simulation.scenario import Scenario

#: Of the settings that an engine fills in, those on which latencies and capacity depend most.
_TOLD = ("gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size",
         "enable_prefix_caching", "kv_cache_dtype", "quantization")


def filled_in(scenario: Scenario) -> tuple[Note, ...]:
    """A note on each setting that the engines of *scenario* fill in, pool by pool where they differ."""
    found = {pool.name: _of(pool.deployment, scenario.of_pool(pool.name) if pool.name else scenario)
             for pool in Fleet.of(scenario).pools}
    notes = []
    for name, rows in found.items():
        for (setting, value), why in rows.items():
            everywhere = all(other.get((setting, value)) == why for other in found.values())
            notes.append(Note("" if everywhere else f"pool {name}", f"{setting} = {value}", why))
    return tuple(dict.fromkeys(notes))


def _of(deployment: Deployment, scenario: Scenario) -> Mapping[tuple[str, Any], str]:
    rows = Defaults(scenario.serve, deployment.version, deployment.model, deployment.gpu).explain()
    given = {key for key in _TOLD if getattr(scenario.serve, key) not in (None, "auto")}
    shown = [row for row in rows if row.setting in _TOLD and row.setting not in given]
    return {(row.setting, str(row.value).lower() if isinstance(row.value, bool) else row.value): row.source
            for row in shown if row.value not in ("none", "auto")}
