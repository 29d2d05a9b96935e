"""What a `kv_transfer_config` names: a connector between engines, one that offloads, or both in a MultiConnector.

Of connectors between engines: what pools say of them by default, and which pools a connector can join.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice, plain, structure
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.network.links import Links
from ksim.simulation.pool import EnginePool
from ksim.specs.configs import KvTransferConfig
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import CACHE_DTYPES

__all__ = ["EXTRA", "KEY", "OFFLOAD", "aliases", "check_joined", "check_sequences", "completed", "connector_of",
           "multi_of", "offload_settings", "parts_of", "with_offloading"]


KEY = "serve.kv_transfer_config"
MULTI, OFFLOAD = "MultiConnector", "kv.offload.connectors"
#: The connector of each backend of vLLM's ``--kv-offloading-backend``.
_BACKENDS: Mapping[str, str] = {"native": "OffloadingConnector", "lmcache": "LMCacheConnectorV1"}
EXTRA = "kv_connector_extra_config"


@frozen
class ConnectorParts:
    """The part of a configuration that is about other engines, and the part that offloads; None without one."""

    transfer: KvTransferConfig | None = None
    offload: KvTransferConfig | None = None


def aliases(folder: str) -> dict[str, str]:
    """The files of a folder of connectors by the names that their engines have for them."""
    return {str(getattr(catalog.find(folder, file), "alias", file)): file for file in catalog.names(folder)}


def offloads(name: str | None) -> bool:
    """Whether the connector of that *name* offloads."""
    known = aliases(OFFLOAD)
    return name in known or name in known.values()


def parts_of(config: KvTransferConfig | None) -> ConnectorParts:
    """The parts of *config*; raises ConfigError where two of one kind are named."""
    if config is None:
        return ConnectorParts()
    several = multi_of(config) if config.kv_connector == MULTI else (config,)
    found: dict[str, KvTransferConfig] = {}
    for one in several:
        kind = "offload" if offloads(one.kv_connector) else "transfer"
        if kind in found:
            raise ConfigError(f"{KEY}.{EXTRA}.connectors", f"has {found[kind].kv_connector} and {one.kv_connector}; a"
                              f" {MULTI} here has one connector between engines and one that offloads")
        found[kind] = one
    return ConnectorParts(**found)


def multi_of(config: KvTransferConfig) -> tuple[KvTransferConfig, ...]:
    """The connectors of a MultiConnector, which vLLM asks in this order."""
    where, tables = f"{KEY}.{EXTRA}", config.kv_connector_extra_config.get("connectors")
    if not isinstance(tables, list | tuple) or not tables or len(config.kv_connector_extra_config) > 1:
        raise ConfigError(where, f"of a {MULTI} has one key, connectors: a list of tables, each with a kv_connector")
    made = [structure(KvTransferConfig, table, f"{where}.connectors[{place}]") if isinstance(table, Mapping) else None
            for place, table in enumerate(tables)]
    if not all(one is not None and one.kv_connector not in (None, MULTI) for one in made):
        raise ConfigError(f"{where}.connectors", "has an entry that names no kv_connector of its own")
    return tuple(evolve(one, kv_load_failure_policy=config.kv_load_failure_policy) for one in made if one)


def with_parts(config: KvTransferConfig, transfer: KvTransferConfig) -> KvTransferConfig:
    """The MultiConnector *config* with another connector between engines."""
    connectors = [plain(one if offloads(one.kv_connector) else transfer) for one in multi_of(config)]
    return evolve(config, kv_connector_extra_config={"connectors": connectors}, kv_role=config.kv_role or "kv_both")


def offload_settings(config: KvTransferConfig | None) -> Any:
    """What the part of *config* that offloads says, an `OffloadSettings`; None where nothing does."""
    part = parts_of(config).offload
    if part is None or part.kv_connector is None:
        return None
    if part.kv_role not in (None, "kv_both"):
        raise ConfigError(f"{KEY}.kv_role", f"is {part.kv_role!r}, and {part.kv_connector} stores and loads; set"
                                            " 'kv_both', or leave it out")
    file = aliases(OFFLOAD).get(part.kv_connector, part.kv_connector)
    try:
        read = getattr(catalog.find(OFFLOAD, file), "options", dict)
        return plugin(OFFLOAD, Choice(file, read(part.kv_connector_extra_config)))
    except UnknownName:
        raise
    except ConfigError as error:
        raise ConfigError(f"{KEY}.{EXTRA}", str(error)) from None


def with_offloading(serve: EngineSettings) -> EngineSettings:
    """*serve* with the connector that `kv_offloading_size` asks for, as vLLM's engine arguments have it."""
    size, backend = serve.kv_offloading_size, serve.kv_offloading_backend or "native"
    if size is None:
        if serve.kv_offloading_backend is not None:
            raise ConfigError("serve.kv_offloading_backend", "does nothing without kv_offloading_size; set that, too")
        return serve
    config, name = serve.kv_transfer_config or KvTransferConfig(), _BACKENDS[backend]
    if config.kv_connector not in (None, name):
        raise ConfigError("serve.kv_offloading_size", f"would put {name} in the place of {config.kv_connector}, as vLLM"
                          f" does without a word; name both in a kv_transfer_config with {MULTI} (docs/caches.md)")
    if not offloads(name):
        raise ConfigError("serve.kv_offloading_backend", f"is {backend!r}: {name} is not simulated; choose another")
    extra = dict(config.kv_connector_extra_config)
    if backend == "native":
        extra["cpu_bytes_to_use"] = size * 2**30
    else:
        extra["lmcache.max_local_cpu_size"] = size / serve.gpus
    return evolve(serve, kv_transfer_config=evolve(config, kv_connector=name, kv_role="kv_both",
                                                   kv_connector_extra_config=extra))


FOLDER = "kv.transfer.connectors"
#: What vLLM calls the connector that is used where nothing is said.
DEFAULT = "NixlConnector"
#: How the names of vLLM's other connectors begin.
_OTHERS = ("DecodeBench", "Example", "FlexKV", "HF3FS", "HiSparse", "LMCache", "MoRIIO", "MooncakeStore", "P2pNccl",
           "SimpleCPUOffload")
#: vLLM's word for what the engines of a role do with KV.
_KV_ROLES: Mapping[str, str] = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}


def connector_of(config: KvTransferConfig) -> Any:
    """Build the connector that *config* names, with its options; raises UnknownName and ConfigError."""
    file = _file(config.kv_connector or DEFAULT)
    try:
        connector = plugin(FOLDER, Choice(file, config.kv_connector_extra_config))
    except ConfigError as error:
        raise ConfigError("kv_connector_extra_config", str(error)) from None
    if reason := _contradiction(connector):
        raise ConfigError("kv_connector", f"{file} {reason}")
    return connector


def _contradiction(connector: Any) -> str:
    """Why nothing could move as *connector* says; "" if it can."""
    concurrent, by_chunk, pull = (getattr(connector, key, False) for key in ("concurrent", "by_chunk", "pull"))
    if pull and concurrent:
        return "has pull and concurrent: D would read before P has computed; leave one out"
    if by_chunk and not concurrent:
        return "has by_chunk and not concurrent: P would wait for D, and D for P's answer; set concurrent"
    return ""


def _file(name: str) -> str:
    """The plug-in that *name* means, which may be the name of its engine's class."""
    known = aliases(FOLDER)
    if name not in known and name not in known.values() and ":" not in name:
        others = [*known, *aliases(OFFLOAD), MULTI]
        if name.startswith(_OTHERS):
            raise ConfigError("kv_connector", f"vLLM's {name} is not simulated; choose one of {', '.join(others)}")
        raise UnknownName("connector", name, [*others, *known.values()])
    return known.get(name, name)


def completed(config: KvTransferConfig | None, role: str) -> KvTransferConfig:
    """*config* for engines of a pool's *role*; raises ConfigError for a connector or a `kv_role` that cannot be."""
    if config is not None and config.kv_connector == MULTI:
        return with_parts(config, completed(_between_engines(config), role))
    config, usual = _between_engines(config or KvTransferConfig()), _KV_ROLES[role]
    if config.kv_role not in (None, "kv_both", usual):
        raise ConfigError("serve.kv_transfer_config.kv_role", f"is {config.kv_role!r}, and the pool's role is {role!r};"
                                                              f" set {usual!r}, or leave it out")
    try:
        connector_of(config)
    except UnknownName as error:
        raise ConfigError("serve.kv_transfer_config.kv_connector", str(error)) from None
    except ConfigError as error:
        raise ConfigError(f"serve.kv_transfer_config.{error.args[0]}", *error.args[1:]) from None
    return evolve(config, kv_connector=config.kv_connector or DEFAULT, kv_role=config.kv_role or usual)


def _between_engines(config: KvTransferConfig) -> KvTransferConfig:
    """The part of *config* that is about other engines; raises ConfigError without one."""
    part = parts_of(config).transfer
    if part is None:
        raise ConfigError("serve.kv_transfer_config.kv_connector",
                          f"{config.kv_connector} offloads, and pools of roles prefill and decode send each other KV;"
                          f" name a connector for both in a {MULTI} (docs/caches.md)")
    return part


def check_sequences(pools: Sequence[EnginePool]) -> None:
    """Raise ConfigError for a synthetic load of which engines that prefill for others would reject every request."""
    for model in dict.fromkeys(pool.model for pool in pools):
        own = [pool for pool in pools if pool.model == model]
        workload = own[0].deployment.scenario.workload
        for where, load in workload.syntheses.items():
            if (load.n > 1 or load.beam_width) and not any(pool.role == "both" for pool in own):
                key = "beam_width" if load.beam_width else "n"
                raise ConfigError(f"{where}.{key}",
                                  f"is {getattr(load, key)}, and a request that one engine prefills for another has one"
                                  " sequence; leave it out, or give a pool the role 'both'")


def check_joined(pools: Sequence[EnginePool], links: Links) -> None:
    """Raise ConfigError for pools between which no KV can be sent: other connectors, other formats, or no path."""
    for pool in pools[1:]:
        _check_connectors(pools[0], pool)
    sources, targets = ([pool for pool in pools if (pool.role == "prefill") == prefill] for prefill in (True, False))
    for source in sources:
        for target in (pool for pool in targets if pool.model == source.model):
            _check_formats(source, target)
            _check_path(source, target, links)


def _check_connectors(pool: EnginePool, other: EnginePool) -> None:
    if connector_of(_config(pool)) != connector_of(_config(other)):
        said = [f"{_config(each).kv_connector!r} with {dict(_config(each).kv_connector_extra_config) or 'no options'}"
                for each in (pool, other)]
        raise ConfigError(f"pools.{other.name}.serve.kv_transfer_config",
                          f"is {said[1]}, and that of pool {pool.name} is {said[0]}; both ends of a transfer need the"
                          " same connector and options: say them once, in serve.kv_transfer_config")


def _check_formats(source: EnginePool, target: EnginePool) -> None:
    if getattr(connector_of(_config(source)), "equal_tensor_parallel", False):
        _check_equal(source, target, "tensor_parallel_size", f"{_config(source).kv_connector} needs equal sizes; set"
                                                             f" both alike, or take {DEFAULT}")
    drafters = [_drafter(pool) for pool in (source, target)]
    if drafters[0] != drafters[1]:
        raise ConfigError(f"pools.{target.name}.serve.speculative_config",
                          f"has {drafters[1]}, and that of pool {source.name} {drafters[0]}; KV of drafters is sent,"
                          " too: set both alike, or draft by n-grams")
    formats = [CACHE_DTYPES[pool.deployment.serve.kv_cache_dtype] for pool in (source, target)]
    for key in (*(["kv_cache_dtype"] if formats[0] is not formats[1] else []), "block_size", "prefix_cache"):
        _check_equal(source, target, key, "KV is sent as it is stored; set both alike")


def _drafter(pool: EnginePool) -> str:
    """What of a drafter its KV depends on; vLLM's NIXL connector compares it, too."""
    config = pool.deployment.serve.speculative_config
    if config is None or not config.keeps_cache:
        return "no drafter with KV"
    return " ".join(str(part) for part in (config.method, config.model, config.kv_cache_dtype) if part)


def _check_equal(source: EnginePool, target: EnginePool, key: str, advice: str) -> None:
    values = [getattr(pool.deployment.serve, key) for pool in (source, target)]
    if values[0] != values[1]:
        raise ConfigError(f"pools.{target.name}.serve.{key}", f"is {values[1]!r}, and that of pool {source.name} is"
                                                              f" {values[0]!r}; {advice}")


def _check_path(source: EnginePool, target: EnginePool, links: Links) -> None:
    ends = [f"gpu{pool.gpus(pool.places[0])[0]}" for pool in (source, target)]
    try:
        links.path(*ends)
    except ConfigError as error:
        raise ConfigError(f"pools.{source.name}, pools.{target.name}", f"no KV can be sent between them: {error}"
                          ) from None


def _config(pool: EnginePool) -> KvTransferConfig:
    config = parts_of(pool.deployment.serve.kv_transfer_config).transfer
    assert config is not None, "pools of a fleet that splits requests have one"
    return config
