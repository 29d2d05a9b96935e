"""Connectors by name, what pools say of them by default, and which pools a connector can join."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from ksim.foundation import catalog
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.foundation.plugins import plugin
from ksim.network.links import Links
from ksim.simulation.pool import Pool
from ksim.specs.kv_transfer import KvTransferConfig
from ksim.specs.pools import PoolSettings

__all__ = ["check_joined", "check_roles", "completed", "connector_of"]

FOLDER = "kv_transfer.connectors"
#: What vLLM calls the connector that is used where nothing is said.
DEFAULT = "NixlConnector"
#: vLLM's word for what the engines of a role do with KV.
_KV_ROLES: Mapping[str, str] = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}


def connector_of(config: KvTransferConfig) -> Any:
    """Build the connector that *config* names, with its options; raises UnknownName and ConfigError."""
    name = config.kv_connector or DEFAULT
    try:
        return plugin(FOLDER, Choice(_file(name), config.kv_connector_extra_config))
    except ConfigError as error:
        raise ConfigError("kv_connector_extra_config", str(error)) from None


def _file(name: str) -> str:
    """The plug-in that *name* means, which may be the name of its engine's class."""
    aliases = {str(getattr(catalog.find(FOLDER, file), "alias", file)): file for file in catalog.names(FOLDER)}
    if name not in aliases and name not in aliases.values() and ":" not in name:
        raise UnknownName("connector", name, [*aliases, *aliases.values()])
    return aliases.get(name, name)


def completed(config: KvTransferConfig | None, role: str) -> KvTransferConfig:
    """*config* for engines of a pool's *role*; raises ConfigError for a connector or a `kv_role` that cannot be."""
    config, usual = config or KvTransferConfig(), _KV_ROLES[role]
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


def check_roles(pools: Mapping[str, PoolSettings]) -> None:
    """Raise ConfigError for a role that needs engines of another role, where there are none."""
    roles = {pool.role for pool in pools.values()}
    for name, pool in pools.items():
        if pool.role == "prefill" and roles == {"prefill"}:
            raise ConfigError(f"pools.{name}.role", "is 'prefill', and no pool decodes; add one of role 'decode' or"
                                                    " 'both'")
        if pool.role == "decode" and "prefill" not in roles:
            raise ConfigError(f"pools.{name}.role", "is 'decode', and no pool prefills for it; add one of role"
                                                    " 'prefill', or set 'both'")


def check_joined(pools: Sequence[Pool], links: Links) -> None:
    """Raise ConfigError for pools between which no KV can be sent: other connectors, other formats, or no path."""
    sources, targets = ([pool for pool in pools if (pool.role == "prefill") == prefill] for prefill in (True, False))
    for source in sources:
        for target in targets:
            _check_connectors(source, target)
            _check_formats(source, target)
            _check_path(source, target, links)


def _check_connectors(source: Pool, target: Pool) -> None:
    one, other = (connector_of(_config(pool)) for pool in (source, target))
    names = [_config(pool).kv_connector for pool in (source, target)]
    if type(one) is not type(other):
        raise ConfigError(f"pools.{target.name}.serve.kv_transfer_config.kv_connector",
                          f"is {names[1]!r}, and that of pool {source.name} is {names[0]!r}; name one for both")
    if getattr(one, "equal_tensor_parallel", False):
        _check_equal(source, target, "tensor_parallel_size", f"{names[0]} needs equal sizes; set both alike, or take"
                                                             " NixlConnector")


def _check_formats(source: Pool, target: Pool) -> None:
    for key in ("kv_cache_dtype", "block_size", "prefix_cache"):
        _check_equal(source, target, key, "KV is sent as it is stored; set both alike")


def _check_equal(source: Pool, target: Pool, key: str, advice: str) -> None:
    values = [getattr(pool.deployment.serve, key) for pool in (source, target)]
    if values[0] != values[1]:
        raise ConfigError(f"pools.{target.name}.serve.{key}", f"is {values[1]!r}, and that of pool {source.name} is"
                                                              f" {values[0]!r}; {advice}")


def _check_path(source: Pool, target: Pool, links: Links) -> None:
    ends = [f"gpu{pool.gpus(pool.places[0])[0]}" for pool in (source, target)]
    try:
        links.path(*ends)
    except ConfigError as error:
        raise ConfigError(f"pools.{source.name}, pools.{target.name}", f"no KV can be sent between them: {error}"
                          ) from None


def _config(pool: Pool) -> KvTransferConfig:
    config = pool.deployment.serve.kv_transfer_config
    assert config is not None, "pools of a fleet that splits requests have one"
    return config
