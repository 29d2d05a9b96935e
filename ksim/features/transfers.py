"""Connectors between engines by name, what pools say of them by default, and which pools a connector can join."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.network.links import Links
from ksim.scenario.connector_parts import MULTI, OFFLOAD, aliases, parts_of, with_parts
from ksim.scenario.scenario import Scenario
from ksim.simulation.pool import EnginePool
from ksim.specs.configs import KvTransferConfig
from ksim.specs.shard import CACHE_DTYPES

__all__ = ["check_joined", "check_sequences", "completed", "connector_of"]

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


def check_sequences(scenario: Scenario, pools: Sequence[EnginePool]) -> None:
    """Raise ConfigError for a synthetic load of which engines that prefill for others would reject every request."""
    load = scenario.workload.synthetic
    if load and (load.n > 1 or load.beam_width) and not any(pool.role == "both" for pool in pools):
        key = "beam_width" if load.beam_width else "n"
        raise ConfigError(f"workload.synthetic.{key}",
                          f"is {getattr(load, key)}, and a request that one engine prefills for another has one"
                          " sequence; leave it out, or give a pool the role 'both'")


def check_joined(pools: Sequence[EnginePool], links: Links) -> None:
    """Raise ConfigError for pools between which no KV can be sent: other connectors, other formats, or no path."""
    for pool in pools[1:]:
        _check_connectors(pools[0], pool)
    sources, targets = ([pool for pool in pools if (pool.role == "prefill") == prefill] for prefill in (True, False))
    for source in sources:
        for target in targets:
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
