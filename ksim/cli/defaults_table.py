"""The table that `ksim run --explain-defaults` prints."""

from typing import Any

from rich.console import Console

from ksim.cli.screen import table
from ksim.foundation.units import GIB
from ksim.simulation.assembly import Site
from ksim.simulation.defaults import Defaults, Derived
from ksim.simulation.scenario import Scenario
from ksim.simulation.sizing import RESERVED, kv_blocks, memory


def show(console: Console, scenario: Scenario) -> None:
    """Print every setting that *scenario* leaves open, what the engine makes of it, and why."""
    site = Site.of(scenario)
    version = site.version
    rows = table("setting", "value", "from", title=f"{version.name}, {site.model.name} on {site.gpu.name}")
    for derived in [*Defaults(scenario.serve, version, site.model, site.gpu).explain(), *_consequences(site)]:
        rows.add_row(derived.setting, _brief(derived.value), derived.source)
    if scenario.oracle is None and site.scenario.oracle is not None:
        name = site.scenario.oracle.name
        rows.add_row("oracle", name, f"{'a' if name == 'measured' else 'no'} profile of {site.gpu.name} ships")
    console.print(rows)
    console.print(f"{version.name}: {version.source}")


def _brief(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    if len(value) > 8:
        return f"{len(value)} sizes up to {max(value)}"
    return ", ".join(map(str, value)) or "none"


def _consequences(site: Site) -> list[Derived]:
    """What follows once the settings are complete."""
    serve, shard = site.scenario.serve, site.shards[0]
    part = memory(site.model, shard, site.gpu, serve)
    blocks = kv_blocks(site.model, site.shards, site.gpu, serve, site.system)
    budget = (f"{part.usable / GIB:.2f} GiB usable - {part.weights / GIB:.2f} weights - {part.activations / GIB:.2f}"
              f" activations - {RESERVED / GIB:.2f} reserved, {part.cache_per_token / 1024:.0f} KiB a token")
    return [
        Derived("num_gpu_blocks", blocks + 1, "as set" if serve.num_gpu_blocks_override else budget),
    ]
