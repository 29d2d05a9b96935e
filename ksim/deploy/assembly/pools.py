"""The engines of a scenario: one as the scenario itself, several as its pools, on as many nodes as they need."""

from collections.abc import Mapping, Sequence
from typing import Any

from ksim.deploy.launches import Launch, Note, Wanted
from ksim.foundation.errors import ConfigError
from ksim.simulation.deployment import Deployment
from ksim.simulation.hardware import system_of
from ksim.simulation.memory_share import of_free
from ksim.simulation.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.scenario_tables import alike, beside


def engines(launches: Sequence[Launch], wanted: Wanted) -> tuple[dict[str, Any], list[Note]]:
    """The tables of the scenario that describe engines: of one, or of pools."""
    tables = [_described(launch, wanted) for launch in launches]
    if len(tables) == 1 and launches[0].replicas == 1:
        return _with_nodes(tables[0], launches)
    shared = alike(tables)
    pools: dict[str, Any] = {}
    for launch, table in zip(launches, tables, strict=True):
        _add_pool(pools, launch, beside(shared, table))
    return _with_nodes({**shared, "pools": pools}, launches)


def _add_pool(pools: dict[str, Any], launch: Launch, own: Mapping[str, Any]) -> None:
    """Add the engines of *launch* to the pool that is alike, or as a pool of their own, which they are if they have a
    name of their own.
    """
    for name, pool in pools.items():
        if launch.name not in ("", name):
            continue
        if {key: pool[key] for key in pool if key != "replicas"} == {"role": launch.role, **own}:
            pool["replicas"] += launch.replicas
            return
    stem = launch.name or {"both": "engines"}.get(launch.role, launch.role)
    names = (stem, *(f"{stem}-{number}" for number in range(2, 10**4)))
    pools[next(name for name in names if name not in pools)] = {
        "role": launch.role, "replicas": launch.replicas, **own}


def _described(launch: Launch, wanted: Wanted) -> dict[str, Any]:
    """The engine, the hardware and the settings of a launch; raises ConfigError where its GPU is not known."""
    given = {key: value for key, value in (("gpu", wanted.gpu), ("system", wanted.system)) if value}
    hardware = given or {key: launch.hardware[key] for key in ("gpu", "system") if launch.hardware.get(key)}
    if not hardware:
        raise ConfigError(launch.where, "does not say on which GPU; name it, such as --gpu h100 (see `ksim list gpus`),"
                                        " or a --system")
    nodes = wanted.nodes or launch.hardware.get("nodes")
    host = launch.hardware.get("host")
    engine = {"engine": launch.engine, **hardware, **({"nodes": nodes} if nodes else {}),
              **({"host": host} if host else {}), "serve": dict(launch.serve)}
    if launch.free_share is not None:
        engine["serve"]["gpu_memory_utilization"] = _utilization(_alone(engine), launch.model, launch.free_share)
    return engine


def _utilization(engine: Mapping[str, Any], model: str, share: float) -> float:
    """The `gpu_memory_utilization` that leaves *share* of what weights and activations leave for the KV cache."""
    deployment = Deployment.of(Scenario.of({"model": model, **engine, "workload": ANY_WORKLOAD}, "imported"))
    return of_free(share, deployment.model, deployment.gpu, deployment.serve)


def _alone(engine: Mapping[str, Any]) -> dict[str, Any]:
    """*engine* without what only engines of a fleet have."""
    return {**engine, "serve": {key: value for key, value in engine["serve"].items() if key != "kv_transfer_config"}}


def _with_nodes(table: dict[str, Any], launches: Sequence[Launch]) -> tuple[dict[str, Any], list[Note]]:
    """*table* with as many nodes as the engines need, where nobody says how many there are."""
    pools = table.get("pools", {})
    if table.get("nodes") or any(pool.get("nodes") for pool in pools.values()) or not (
            table.get("gpu") or table.get("system")):
        return table, []
    system = system_of(table.get("gpu"), table.get("system"))
    gpus = sum(launch.replicas * launch.gpus for launch in launches)
    needed = -(-gpus // system.gpus_per_node)
    if needed <= system.nodes:
        return table, []
    serve = table.pop("serve")
    why = f"as many as {gpus} GPUs need, {system.gpus_per_node} a node; nothing says how many there are"
    return {**table, "nodes": needed, "serve": serve}, [Note("", f"nodes = {needed}", why)]
