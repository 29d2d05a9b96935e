"""`ksim import`, from texts to a scenario: each is read by its reader, and all launches become one commented file."""

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from attrs import evolve

from ksim.deploy.commands import Deployed, EngineLaunch, Imported, ImportOptions, Note
from ksim.deploy.manifests.autoscalers import with_autoscalers
from ksim.deploy.texts import Pasted, tidied
from ksim.deploy.workload import bench_of, made_up
from ksim.features.transfers import OFFLOAD, aliases
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, one_line
from ksim.foundation.files import is_there
from ksim.scenario.defaults import Deployment
from ksim.scenario.hardware import system_of
from ksim.scenario.models import model_of
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario, alike, beside, merged
from ksim.scenario.sizing import of_free
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import try_to_build
from ksim.specs.pools import ROLES
from ksim.specs.settings import EngineSettings

_WHY = ("left out: no engine here prefills for another; where others do, import their lines together, with --role for"
        " each")


def alone_or_joined(launches: Sequence[EngineLaunch]) -> list[EngineLaunch]:
    """*launches* without connectors between engines, where none prefills for others."""
    if any(launch.role == "prefill" for launch in launches):
        return [*launches]
    return [_alone(launch) for launch in launches]


def _alone(launch: EngineLaunch) -> EngineLaunch:
    config = launch.serve.get("kv_transfer_config")
    if not config or _offloads(str(config.get("kv_connector", ""))):
        return launch
    serve = {key: value for key, value in launch.serve.items() if key != "kv_transfer_config"}
    note = Note(launch.where, f"kv_connector {config.get('kv_connector', '')}".strip(), _WHY)
    return evolve(launch, serve=serve, role="both", remarks=(*launch.remarks, note))


def _offloads(name: str) -> bool:
    known = aliases(OFFLOAD)
    return name in known or name in known.values() or name == "MultiConnector"


def within_context(launch: EngineLaunch) -> EngineLaunch:
    """*launch* with no longer context than its model's config.json has."""
    asked, (table, key) = _context(launch), _CONTEXTS["sglang" if "sglang" in launch.engine else ""]
    most = model_of(launch.model, launch.serve.get("hf_overrides", {})).max_length
    if not isinstance(asked, int) or asked <= most:
        return launch
    why = (f"left out: {launch.model} of the catalogue has {most} tokens; for requests that are longer, download the"
           f" config.json of your model and name it with --model, or say how it is stretched with --hf-overrides")
    serve = {name: value for name, value in launch.serve.items() if name not in (key, table)}
    if table and (own := {name: value for name, value in launch.serve[table].items() if name != key}):
        serve[table] = own
    return evolve(launch, serve=serve, remarks=(*launch.remarks, Note(launch.where, f"{key} = {asked}", why)))


#: The table and key of the most tokens of a request.
_CONTEXTS = {"": ("", "max_model_len"), "sglang": ("sglang", "context_length")}


def _context(launch: EngineLaunch) -> Any:
    table, key = _CONTEXTS["sglang" if "sglang" in launch.engine else ""]
    return (launch.serve.get(table, {}) if table else launch.serve).get(key)


#: Of the settings that an engine fills in, those on which latencies and capacity depend most.
_TOLD = ("gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size",
         "enable_prefix_caching", "kv_cache_dtype", "quantization", "sglang.mem_fraction_static",
         "sglang.context_length", "sglang.chunked_prefill_size", "sglang.max_running_requests", "sglang.page_size")


def filled_in(scenario: Scenario, fleet: Fleet) -> tuple[Note, ...]:
    """A note on each setting that the engines of *scenario*, its *fleet*, fill in; pool by pool where they differ."""
    found = {pool.name: _of(pool.deployment, scenario.of_pool(pool.name) if pool.name else scenario)
             for pool in fleet.pools}
    notes = []
    for name, rows in found.items():
        for (setting, value), why in rows.items():
            everywhere = all(other.get((setting, value)) == why for other in found.values())
            notes.append(Note("" if everywhere else f"pool {name}", f"{setting} = {value}", why))
    return tuple(dict.fromkeys(notes))


def _of(deployment: Deployment, scenario: Scenario) -> Mapping[tuple[str, Any], str]:
    given = {key for key in _TOLD if _said(scenario.serve, key) not in (None, "auto")}
    shown = [row for row in deployment.explain(scenario.serve) if row.setting in _TOLD and row.setting not in given
             and not row.source.startswith("sglang.")]
    return {(row.setting, str(row.value).lower() if isinstance(row.value, bool) else row.value): row.source
            for row in shown if row.value not in ("none", "auto")}


def _said(serve: EngineSettings, key: str) -> Any:
    own = key.removeprefix("sglang.")
    return getattr(serve, key) if own == key else getattr(serve.sglang, own, None)


def engines(launches: Sequence[EngineLaunch], wanted: ImportOptions) -> tuple[dict[str, Any], list[Note]]:
    """The tables of the scenario that describe engines: of one, or of pools."""
    tables = [_described(launch, wanted) for launch in launches]
    if len(tables) == 1 and launches[0].replicas == 1 and not launches[0].pool:
        return _with_nodes(tables[0], launches)
    shared = alike(tables)
    pools: dict[str, Any] = {}
    for launch, table in zip(launches, tables, strict=True):
        _add_pool(pools, launch, beside(shared, table))
    return _with_nodes({**shared, "pools": pools}, launches)


def _add_pool(pools: dict[str, Any], launch: EngineLaunch, own: Mapping[str, Any]) -> None:
    """Add the engines of *launch* to the pool that is alike, or as a pool of their own, which they are if they have a
    name of their own.
    """
    for name, pool in pools.items():
        if launch.name not in ("", name):
            continue
        if {key: pool[key] for key in pool if key != "replicas"} == {"role": launch.role, **launch.pool, **own}:
            pool["replicas"] += launch.replicas
            return
    stem = launch.name or {"both": "engines"}.get(launch.role, launch.role)
    names = (stem, *(f"{stem}-{number}" for number in range(2, 10**4)))
    pools[next(name for name in names if name not in pools)] = {
        "role": launch.role, "replicas": launch.replicas, **launch.pool, **own}


def _described(launch: EngineLaunch, wanted: ImportOptions) -> dict[str, Any]:
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
        engine["serve"]["gpu_memory_utilization"] = _utilization(_pool_alone(engine), launch.model, launch.free_share)
    return engine


def _utilization(engine: Mapping[str, Any], model: str, share: float) -> float:
    """The `gpu_memory_utilization` that leaves *share* of what weights and activations leave for the KV cache."""
    deployment = Deployment.of(Scenario.of({"model": model, **engine, "workload": ANY_WORKLOAD}, "imported"))
    return of_free(share, deployment.model, deployment.gpu, deployment.serve)


def _pool_alone(engine: Mapping[str, Any]) -> dict[str, Any]:
    """*engine* without what only engines of a fleet have."""
    return {**engine, "serve": {key: value for key, value in engine["serve"].items() if key != "kv_transfer_config"}}


def _with_nodes(table: dict[str, Any], launches: Sequence[EngineLaunch]) -> tuple[dict[str, Any], list[Note]]:
    """*table* with as many nodes as the engines need, where nobody says how many there are."""
    pools = table.get("pools", {})
    if table.get("nodes") or any(pool.get("nodes") for pool in pools.values()) or not (
            table.get("gpu") or table.get("system")):
        return table, []
    system = system_of(table.get("gpu"), table.get("system"))
    gpus = sum(launch.pool.get("max_replicas", launch.replicas) * launch.gpus for launch in launches)
    needed = -(-gpus // system.gpus_per_node)
    if needed <= system.nodes:
        return table, []
    serve = table.pop("serve")
    why = f"as many as {gpus} GPUs need, {system.gpus_per_node} a node; nothing says how many there are"
    return {**table, "nodes": needed, "serve": serve}, [Note("", f"nodes = {needed}", why)]


def assembled(deployed: Deployed, wanted: ImportOptions) -> Imported:
    """The scenario of all launches of *deployed*; raises ConfigError where they are none, or not of one fleet."""
    deployed = with_autoscalers(deployed, wanted)
    if not deployed.launches:
        raise ConfigError("the text", "starts no engine")
    launches = [within_context(launch) for launch in
                alone_or_joined(_with_roles(_whole(deployed.launches), wanted))]
    _check_one_model(launches)
    further: Mapping[str, Any] = {}
    for launch in launches:
        further = merged(further, launch.scenario)
    table, remarks = engines(launches, wanted)
    fleet = deployed.of_fleet if "pools" in table else {}
    whole = {"model": launches[0].model, **table, **merged(_by_sides(further, launches),
                                                           merged(fleet, deployed.scenario))}
    if "workload" not in whole:
        load, note = made_up(min((length for launch in launches if (length := _context(launch))), default=None))
        whole, remarks = {**whole, **load}, [note, *remarks]
    notes = [note for launch in deployed.launches for note in launch.idle]
    said = [note for launch in launches for note in launch.remarks]
    return Imported(whole, _once([*notes, *deployed.idle]), _once([*remarks, *said, *deployed.remarks]))


def _by_sides(further: Mapping[str, Any], launches: Sequence[EngineLaunch]) -> Mapping[str, Any]:
    """*further*, in which the router of data-parallel ranks chooses on each side where engines prefill for others."""
    if "router" not in further or not any(launch.role == "prefill" for launch in launches):
        return further
    others = {key: value for key, value in further.items() if key != "router"}
    return {"pair_router": {"name": "each_side", "prefill": further["router"], "decode": further["router"]}, **others}


def _once(notes: Sequence[Note]) -> tuple[Note, ...]:
    return tuple(dict.fromkeys(notes))


def _whole(launches: Sequence[EngineLaunch]) -> list[EngineLaunch]:
    """Those that are engines of their own: not the further nodes of one that several lines start."""
    return [launch for launch in launches if launch.replicas or launch.pool] or [evolve(launches[0], replicas=1)]


def _with_roles(launches: Sequence[EngineLaunch], wanted: ImportOptions) -> list[EngineLaunch]:
    """*launches* with the roles that the user gives; raises ConfigError where one is open."""
    if wanted.roles:
        return _with_given_roles(launches, wanted.roles)
    if {launch.role for launch in launches} & {"prefill", "decode"}:
        for launch in launches:
            if not launch.role:
                raise ConfigError(launch.where, "does not say whether its engine prefills, decodes or both; name the"
                                                " roles of all engines in order: --role prefill --role decode")
    return [evolve(launch, role=launch.role or "both") for launch in launches]


def _with_given_roles(launches: Sequence[EngineLaunch], roles: Sequence[str]) -> list[EngineLaunch]:
    if len(roles) != len(launches):
        raise ConfigError("--role", f"names {len(roles)} roles for {len(launches)} engines; name one for each, in"
                                    f" order")
    for role in roles:
        if role not in ROLES:
            raise ConfigError("--role", f"must be one of {', '.join(ROLES)}, not {role!r}")
    return [evolve(launch, role=role) for launch, role in zip(launches, roles, strict=True)]


def _check_one_model(launches: Sequence[EngineLaunch]) -> None:
    first = launches[0]
    for launch in launches:
        if launch.model != first.model:
            raise ConfigError(launch.where, f"serves {launch.model}, and {first.where} serves {first.model}; import"
                                            " them one by one, and put their pools into one scenario")


_WIDTH = 110
_TABLES = ("serve", "pools", "workload")


def commented(imported: Imported, folder: Path) -> str:
    """*imported* as a scenario file in *folder*."""
    head = ["# Made by `ksim import`.", *_section("Assumed, or different here:", imported.remarks),
            *_section("Filled in, as the engine does:", imported.filled),
            *_section("Without effect here:", imported.idle)]
    return "\n".join(head) + "\n\n" + tomli_w.dumps(_ordered(seen_from(folder, imported.table)))


def _section(title: str, notes: Iterable[Note]) -> Iterator[str]:
    """The *notes* as lines of comments; those of one reason are together."""
    reasons: dict[str, list[str]] = {}
    for note in notes:
        reasons.setdefault(note.why, []).append(f"{note.word} ({note.where})" if note.where else note.word)
    if reasons:
        yield from ("#", f"# {title}")
    for why, words in reasons.items():
        said = one_line(" ".join(f"{', '.join(words)}: {why}".split()))
        yield from textwrap.wrap(said, _WIDTH, initial_indent="# * ", subsequent_indent="#   ",
                                 break_long_words=False, break_on_hyphens=False)


def _ordered(table: Mapping[str, Any]) -> dict[str, Any]:
    """*table* with its plain keys first, as TOML wants them, and its tables in a reader's order."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    named = {key: table[key] for key in _TABLES if table.get(key)}
    return {**plain, **{key: value for key, value in table.items() if key not in plain and key not in _TABLES}, **named}


def seen_from(folder: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """*table* with the paths of its files as a scenario in *folder* writes them."""
    return {key: seen_from(folder, value) if isinstance(value, Mapping) else _path(folder, key, value)
            for key, value in table.items() if value is not None}


def _path(folder: Path, key: str, value: Any) -> Any:
    is_path = isinstance(value, str) and (key == "path" or (key in ("model", "gpu", "system", "host", "engine") and (
        catalog.is_file(value) or is_there(Path(value)))))
    return os.path.relpath(value, folder) if is_path else value


FOLDER = "deploy.readers"
#: Keys of a scenario whose engines stand alone.
_ALONE = {"model", "engine", "gpu", "system", "nodes", "host", "serve", "workload", "slo", "seed"}


def read(pasted: Pasted, wanted: ImportOptions) -> Deployed:
    """What *pasted* deploys; raises ConfigError for a text that no reader recognises, and for what one refuses."""
    _check_text(pasted)
    pasted = evolve(pasted, text=tidied(pasted.text))
    for name in sorted(catalog.names(FOLDER), key=lambda name: (name == "lines", name)):
        reader = catalog.find(FOLDER, name)()
        if reader.recognises(pasted):
            deployed: Deployed = reader.read(pasted, wanted)
            return deployed
    raise ConfigError(pasted.source or "the text", _nothing(pasted))


def _check_text(pasted: Pasted) -> None:
    """Raise ConfigError for bytes of a command line that are no UTF-8, which Python keeps as lone surrogates."""
    try:
        pasted.text.encode("utf-8")
    except UnicodeEncodeError as error:
        line = pasted.text.count("\n", 0, error.start) + 1
        raise ConfigError(pasted.at(line), "has bytes that are no text in UTF-8") from None


def _nothing(pasted: Pasted) -> str:
    first = next((line.strip() for line in pasted.text.splitlines() if line.strip()), "")
    said = f"{first[:60]!r} starts no engine that ksim knows" if first else "is empty"
    return f"{said}; expected `vllm serve MODEL ...`, `python -m sglang.launch_server ...` or `trtllm-serve MODEL ...`"


def scenario_text(texts: Sequence[Pasted], wanted: ImportOptions, output: Path | None = None) -> str:
    """The scenario that *texts* deploy, as commented TOML; raises KsimError for what cannot be simulated.

    Paths in it are as seen from *output*.
    """
    imported = assembled(_with_bench(joined([read(pasted, wanted) for pasted in texts]), wanted), wanted)
    scenario = Scenario.of(imported.table, "imported")
    fleet = Fleet.of(scenario)
    _check(scenario, fleet, imported.table)
    return commented(evolve(imported, filled=filled_in(scenario, fleet)), output.parent if output else Path())


def _check(scenario: Scenario, fleet: Fleet, table: Mapping[str, Any]) -> None:
    """Raise the KsimError of what cannot be simulated.

    What has settings of its own, such as a router or a connector, is built to find out; an engine alone need not be.
    """
    if table.keys() <= _ALONE and not any(isinstance(value, Mapping | list) for value in table["serve"].values()):
        fleet.deployments[0].check_plain()
        next(iter(scenario.workload.requests(scenario.seed)), None)
    else:
        try_to_build(scenario)


def _with_bench(deployed: Deployed, wanted: ImportOptions) -> Deployed:
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
    return Deployed.of(deployments, scenario)
