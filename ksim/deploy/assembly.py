"""Launches to a scenario: one launch is the scenario itself, several are its pools."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from ksim.deploy.bench import bench_of
from ksim.deploy.connectors import alone_or_joined
from ksim.deploy.contexts import within_context
from ksim.deploy.free_share import utilization
from ksim.deploy.imported import Deployed, Imported, Launch, Note, Wanted
from ksim.deploy.pasted import Pasted
from ksim.deploy.reading import read
from ksim.deploy.workloads import made_up
from ksim.foundation.errors import ConfigError
from ksim.simulation.hardware import system_of
from ksim.simulation.scenario import Scenario
from ksim.simulation.scenario_tables import alike, beside, merged
from ksim.simulation.simulate import try_to_build
from ksim.specs.pools import ROLES


def scenario_text(texts: Sequence[Pasted], wanted: Wanted, output: Path | None = None) -> str:
    """The scenario that *texts* deploy, as commented TOML; raises KsimError for what cannot be simulated.

    Paths in it are as seen from *output*.
    """
    from ksim.deploy.scenario_text import commented

    imported = assembled(_with_bench(joined([read(pasted, wanted) for pasted in texts]), wanted), wanted)
    try_to_build(Scenario.of(imported.table, "imported"))
    return commented(imported, output.parent if output else Path())


def _with_bench(deployed: Deployed, wanted: Wanted) -> Deployed:
    """*deployed* under the load of the client whose line the user gives."""
    if wanted.bench is None:
        return deployed
    bench = bench_of(wanted.bench, wanted)
    return evolve(deployed, scenario={**deployed.scenario, **bench.scenario}, idle=(*deployed.idle, *bench.idle),
                  remarks=(*deployed.remarks, *bench.remarks))


def joined(deployments: Sequence[Deployed]) -> Deployed:
    """All that several texts deploy."""
    scenario: Mapping[str, Any] = {}
    for deployed in deployments:
        scenario = merged(scenario, deployed.scenario)
    return Deployed(tuple(launch for deployed in deployments for launch in deployed.launches), scenario,
                    tuple(note for deployed in deployments for note in deployed.idle),
                    tuple(note for deployed in deployments for note in deployed.remarks))


def assembled(deployed: Deployed, wanted: Wanted) -> Imported:
    """The scenario of all launches of *deployed*; raises ConfigError where they are none, or not of one fleet."""
    if not deployed.launches:
        raise ConfigError("the text", "starts no engine")
    launches = [within_context(launch) for launch in
                alone_or_joined(_with_roles(_whole(deployed.launches), wanted))]
    _check_one_model(launches)
    further: Mapping[str, Any] = {}
    for launch in launches:
        further = merged(further, launch.scenario)
    table, remarks = _engines(launches, wanted)
    whole = {"model": launches[0].model, **table, **merged(_by_sides(further, launches), deployed.scenario)}
    if "workload" not in whole:
        load, note = made_up(min((launch.serve["max_model_len"] for launch in launches
                                  if launch.serve.get("max_model_len")), default=None))
        whole, remarks = {**whole, **load}, [note, *remarks]
    notes = [note for launch in deployed.launches for note in launch.idle]
    said = [note for launch in launches for note in launch.remarks]
    return Imported(whole, _once([*notes, *deployed.idle]), _once([*remarks, *said, *deployed.remarks]))


def _by_sides(further: Mapping[str, Any], launches: Sequence[Launch]) -> Mapping[str, Any]:
    """*further*, in which the router of data-parallel ranks chooses on each side where engines prefill for others."""
    if "router" not in further or not any(launch.role == "prefill" for launch in launches):
        return further
    others = {key: value for key, value in further.items() if key != "router"}
    return {"pair_router": {"name": "each_side", "prefill": further["router"], "decode": further["router"]}, **others}


def _once(notes: Sequence[Note]) -> tuple[Note, ...]:
    return tuple(dict.fromkeys(notes))


def _whole(launches: Sequence[Launch]) -> list[Launch]:
    """Those that are engines of their own: not the further nodes of one that several lines start."""
    return [launch for launch in launches if launch.replicas] or [evolve(launches[0], replicas=1)]


def _with_roles(launches: Sequence[Launch], wanted: Wanted) -> list[Launch]:
    """*launches* with the roles that the user gives; raises ConfigError where one is open."""
    if wanted.roles:
        return _with_given_roles(launches, wanted.roles)
    if {launch.role for launch in launches} & {"prefill", "decode"}:
        for launch in launches:
            if not launch.role:
                raise ConfigError(launch.where, "does not say whether its engine prefills, decodes or both; name the"
                                                " roles of all engines in order: --role prefill --role decode")
    return [evolve(launch, role=launch.role or "both") for launch in launches]


def _with_given_roles(launches: Sequence[Launch], roles: Sequence[str]) -> list[Launch]:
    if len(roles) != len(launches):
        raise ConfigError("--role", f"names {len(roles)} roles for {len(launches)} engines; name one for each, in"
                                    f" order")
    for role in roles:
        if role not in ROLES:
            raise ConfigError("--role", f"must be one of {', '.join(ROLES)}, not {role!r}")
    return [evolve(launch, role=role) for launch, role in zip(launches, roles, strict=True)]


def _check_one_model(launches: Sequence[Launch]) -> None:
    first = launches[0]
    for launch in launches:
        if launch.model != first.model:
            raise ConfigError(launch.where, f"serves {launch.model}, and {first.where} serves {first.model}; a scenario"
                                            f" has one model: import them one by one")


def _engines(launches: Sequence[Launch], wanted: Wanted) -> tuple[dict[str, Any], list[Note]]:
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
        engine["serve"]["gpu_memory_utilization"] = utilization(_alone(engine), launch.model, launch.free_share)
    return engine


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
    gpus = sum(launch.replicas * _gpus(launch.serve) for launch in launches)
    needed = -(-gpus // system.gpus_per_node)
    if needed <= system.nodes:
        return table, []
    serve = table.pop("serve")
    why = f"as many as {gpus} GPUs need, {system.gpus_per_node} a node; nothing says how many there are"
    return {**table, "nodes": needed, "serve": serve}, [Note("", f"nodes = {needed}", why)]


def _gpus(serve: Mapping[str, Any]) -> int:
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return math.prod(int(serve.get(size, 1)) for size in sizes)
