"""What a `kv_transfer_config` names: a connector between engines, one that offloads, or both in a MultiConnector."""

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice, plain, structure
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.specs.configs import KvTransferConfig
from ksim.specs.settings import EngineSettings

__all__ = ["EXTRA", "KEY", "MULTI", "OFFLOAD", "ConnectorParts", "aliases", "multi_of", "offload_settings", "parts_of",
           "with_offloading", "with_parts"]


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
