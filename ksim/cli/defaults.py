"""`ksim run --explain-defaults`: the settings that a scenario leaves open, pool by pool."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ksim.cli.output import console, write_json
from ksim.foundation.config import plain
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.simulation.defaults import Derived
    from ksim.simulation.deployment import Deployment
    from ksim.simulation.pool import Pool
    from ksim.simulation.scenario import Scenario


def explain_defaults(scenario: "Scenario", json_file: Path | None = None) -> None:
    """Print every setting that *scenario* leaves open, the value that the engine derives, and why."""
    from ksim.simulation.fleet import Fleet

    fleet = Fleet.of(scenario)
    derived = {pool.name: _derived(pool, scenario.of_pool(pool.name) if pool.name else scenario)
               for pool in fleet.pools}
    write_json(json_file, {"pools": [_content(pool, derived[pool.name]) for pool in fleet.pools]})
    for pool in fleet.pools:
        _explain(pool, derived[pool.name])
    if fleet.splits and scenario.pair_router is None:
        console().print("pair_router: each_side, the default between prefill and decode engines")


def _derived(pool: "Pool", scenario: "Scenario") -> "list[Derived]":
    """What the engines of *pool* derive, of which *scenario* is, and the oracle where nobody names one."""
    from ksim.simulation.defaults import Defaults, Derived

    deployment, oracle = pool.deployment, pool.deployment.scenario.oracle
    defaults = Defaults(scenario.serve, deployment.version, deployment.model, deployment.gpu).explain()
    rows = [*_figures(deployment), *defaults, _kv_blocks(deployment), *_transfers(pool, scenario)]
    if scenario.oracle is None and oracle is not None:
        ships = "a" if oracle.name == "measured" else "no"
        rows.append(Derived("oracle", oracle.name, f"{ships} profile of {deployment.gpu.name} ships"))
    return rows


def _figures(deployment: "Deployment") -> "Iterator[Derived]":
    """The figures of its GPU that a scenario states in place of those of the GPU's file."""
    from ksim.foundation.config import Choice, flat
    from ksim.simulation.defaults import Derived

    if isinstance(gpu := deployment.scenario.gpu, Choice):
        for key, value in flat(gpu.options, "gpu."):
            yield Derived(key, value, f"as set, in place of the figure of {gpu.name}")


def _content(pool: "Pool", derived: "list[Derived]") -> dict[str, Any]:
    deployment = pool.deployment
    return {"pool": pool.name or None, "engine": deployment.version.name, "model": deployment.model.name,
            "gpu": deployment.gpu.name,
            "settings": [{"setting": row.setting, "value": plain(row.value), "from": row.source} for row in derived]}


def _explain(pool: "Pool", derived: "list[Derived]") -> None:
    deployment, version = pool.deployment, pool.deployment.version
    title = f"{version.name}, {deployment.model.name} on {deployment.gpu.name}"
    rows = Table.of("setting", "value", "from", title=f"pool {pool.name}: {title}" if pool.name else title)
    for row in derived:
        rows.add_row(row.setting, _brief(row.value), row.source)
    console().print(rows)
    console().print(f"{version.name}: {version.source}")


def _transfers(pool: "Pool", scenario: "Scenario") -> "Iterator[Derived]":
    """The connector of a pool that sends or takes KV, and what the pool's engines do with it."""
    from ksim.simulation.defaults import Derived

    config, asked = pool.deployment.serve.kv_transfer_config, scenario.serve.kv_transfer_config
    if config is None:
        return
    reasons = {"kv_connector": "the default between prefill and decode engines", "kv_role": f"role of pool {pool.name}"}
    for key, reason in reasons.items():
        said = asked is not None and getattr(asked, key) is not None
        yield Derived(f"kv_transfer_config.{key}", getattr(config, key), "as set" if said else reason)


def _brief(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    if len(value) > 8:
        return f"{len(value)} sizes up to {max(value)}"
    return ", ".join(map(str, value)) or "none"


def _kv_blocks(deployment: "Deployment") -> "Derived":
    """The number of KV blocks that follows from the other settings."""
    from ksim.foundation.units import GIB
    from ksim.simulation.defaults import Derived
    from ksim.simulation.sizing import RESERVED, memory

    part = memory(deployment.model, deployment.shards[0], deployment.gpu, deployment.serve)
    budget = (f"{part.usable / GIB:.2f} GiB usable - {part.weights / GIB:.2f} weights - {part.activations / GIB:.2f}"
              f" activations - {RESERVED / GIB:.2f} reserved, {part.cache_per_token / 1024:.0f} KiB a token")
    given_blocks = deployment.serve.num_gpu_blocks_override
    return Derived("num_gpu_blocks", deployment.kv_blocks + 1, "as set" if given_blocks else budget)
