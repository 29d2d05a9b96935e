"""KV connectors: KV moves between engines, and to and from what is below their GPUs.

One key, `kv_transfer_config`, names a connector between engines (`transfers`), one that offloads (`offloading`), or
both in a MultiConnector.  Whatever moves shares the links of the fleet.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from attrs import frozen

from ksim.engine.collective_flows import CollectiveFlows
from ksim.engine.loop_times import Horizon
from ksim.features.offloading import Offloads, check_offloading, kv_layout, offloading_of, own_cache, tiers_of_pool
from ksim.features.transfers import (
    check_joined,
    check_sequences,
    completed,
    connector_of,
    multi_of,
    parts_of,
    with_offloading,
)
from ksim.flow.events import LinkBuilt, LinkUsed
from ksim.flow.log import Log
from ksim.flow.request import BlockKeys
from ksim.foundation.errors import ConfigError
from ksim.kv.cache import Cache
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.evictions import Eviction
from ksim.kv.offload.connector import JoinedConnector, JoinedWorker
from ksim.kv.transfer.endpoint import Endpoint
from ksim.kv.transfer.transfer import KvPlacement, TransferNetwork
from ksim.network.flows import Flows
from ksim.network.links import Links
from ksim.network.network import CollectiveTraffic, FleetNetwork
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.scheduling.connector import Connector
from ksim.scheduling.connector_scheduler import connecting
from ksim.scheduling.scheduler import Rules
from ksim.simulation.features import Connection, WiredFeature
from ksim.simulation.pool import EnginePlace, EnginePool, named
from ksim.specs.configs import KvTransferConfig
from ksim.specs.settings import EngineSettings

__all__ = ["FEATURE", "FleetMoves"]


@frozen
class FleetMoves:
    """What moves the KV of a fleet over its `network`."""

    network: FleetNetwork
    offloads: Offloads

    @property
    def transfers(self) -> TransferNetwork | None:
        return self.network if isinstance(self.network, TransferNetwork) else None

    def connection(self, pool: EnginePool, number: int, place: EnginePlace, cache: Cache) -> Connection:
        settings = offloading_of(pool)
        sends = self.transfers is not None and parts_of(pool.deployment.serve.kv_transfer_config).transfer is not None
        own = self._endpoint(self.transfers, pool, number, place) if self.transfers and sends else None
        if own is not None and not pool.deployment.approximated:
            return Connection(own, own, own, _siding(own))
        if settings is None:
            return Connection(own, own, own, connecting(own)) if own else Connection()
        connector, worker = self.offloads.of(settings, pool, number, place, cache)
        if own is None:
            return Connection(connector, worker, rules=connecting(connector))
        order: list[Connector] = [own, connector] if _sends_first(pool) else [connector, own]
        joined = JoinedConnector(order)
        return Connection(joined, JoinedWorker(own, worker), own, connecting(joined))

    def _endpoint(self, transfers: TransferNetwork, pool: EnginePool, number: int, place: EnginePlace) -> Endpoint:
        deployment = pool.deployment
        config = _config(deployment)
        placement = KvPlacement(pool.gpus(place), kv_layout(deployment))
        return _kind(pool)(number, placement, deployment.block_tokens, transfers, config.consumes,
                           config.kv_load_failure_policy == "recompute")

    def collective_flows(self, pool: EnginePool, place: EnginePlace) -> CollectiveFlows | None:
        deployment, serve = pool.deployment, pool.deployment.serve
        size = deployment.system.gpus_per_node
        firsts = place.firsts if deployment.shards[0].data > 1 else (place.first,)
        if len({gpu // size for first in firsts for gpu in (first, first + serve.gpus - 1)}) == 1:
            return None
        traffic = CollectiveTraffic(deployment.network, self.network.links, pool.offset)
        return CollectiveFlows(self.network.env, self.network.flows, traffic)


class ConnectorsFeature(WiredFeature):
    """A fleet some of whose engines have a KV connector."""

    def settings(self, serve: EngineSettings) -> EngineSettings:
        return with_offloading(serve)

    def completed(self, config: KvTransferConfig | None, role: str) -> KvTransferConfig:
        """*config* of engines of a *role* in a fleet that splits requests, which all have a connector."""
        return completed(config, role)

    def cache(self, deployment: Deployment, blocks: int, eviction: Eviction | None, keys: BlockKeys | None
              ) -> Cache | None:
        """The store's own, or one that knows its blocks by number."""
        serve = deployment.serve
        if serve.prefix_cache == "sglang":
            assert eviction is not None and serve.block_size is not None, "SGLang's cache has none built in"
            return own_cache(deployment, blocks * serve.block_size, eviction)
        if not deployment.layout.plain or parts_of(serve.kv_transfer_config).offload is None:
            return None
        return BlockCache(blocks, deployment.block_tokens, bool(serve.enable_prefix_caching), eviction,
                          deployment.version.unhashed_blocks_first, keys)

    def facts(self, pool: EnginePool, place: EnginePlace) -> Mapping[str, Any]:
        return {"tiers": tiers_of_pool(pool)}

    def uses_disks(self, pools: Sequence[EnginePool]) -> bool:
        return any("disk" in tiers_of_pool(pool) for pool in pools)

    def check_fleet(self, scenario: Scenario, pools: Sequence[EnginePool], links: Links) -> None:
        check_offloading(pools)
        split = {pool.model for pool in pools if pool.role == "prefill"}
        joined = [pool for pool in pools if pool.model in split]
        if joined:
            check_sequences(joined)
            check_joined(joined, links)
        for pool in pools:
            if pool.model not in split:
                named(pool.name, partial(_check_sends_nothing, pool.deployment))

    def moves(self, pools: Sequence[EnginePool], links: Links, env: Horizon, log: Log) -> FleetMoves | None:
        sends = next((pool for pool in pools if pool.role == "prefill"), None)
        if sends is None and not any(offloading_of(pool) for pool in pools):
            return None
        log.links = [LinkBuilt(number, *link) for number, link in
                     enumerate(zip(links.names, links.kinds, links.capacities, strict=True))]
        env.coupled = True  # what one engine does moves bytes of others
        flows = Flows(env, links, partial(_log_use, log))
        network = (FleetNetwork(env, links, flows) if sends is None else
                   TransferNetwork(env, links, flows, connector_of(_config(sends.deployment)), log))
        return FleetMoves(network, Offloads(network, log))

    def coupling(self, pools: Sequence[EnginePool]) -> str:
        if any(pool.role == "prefill" for pool in pools):
            return "prefill and decode engines send each other what they computed"
        if any(len(tiers_of_pool(pool)) > 1 for pool in pools):
            return "the engines share the disks or the storage to which they offload KV"
        return ""


def _log_use(log: Log, time: float, rates: Mapping[int, float]) -> None:
    """Log the bytes/s that flows use of links from *time* on."""
    log.extend(LinkUsed, {"time": np.full(len(rates), time), "link": np.array([*rates], np.int64),
                          "rate": np.array([*rates.values()], np.float64)})


def _kind(pool: EnginePool) -> type[Endpoint]:
    """The kind of endpoint of the engines in *pool*; SGLang's own are imported only where they are needed."""
    if pool.deployment.approximated:
        return Endpoint
    from ksim.kv.transfer import sides
    return sides.PrefillEnd if pool.role == "prefill" else sides.DecodeEnd


def _siding(end: Any) -> Sequence[Rules]:
    """The scheduler of either side of SGLang's disaggregation, which tells its *end* what to send or to ask for."""
    from ksim.scheduling.sglang import split
    if hasattr(end, "send"):
        return (Rules(1, split.PrefillSide, {"send": end.send}),)
    return (Rules(1, split.DecodeSide, {"begin": end.begin}),)


def _config(deployment: Deployment) -> KvTransferConfig:
    config = parts_of(deployment.serve.kv_transfer_config).transfer
    assert config is not None, "pools of a fleet that splits requests have a connector"
    return config


def _sends_first(pool: EnginePool) -> bool:
    """Whether the MultiConnector of *pool* asks the connector between engines first."""
    config = pool.deployment.serve.kv_transfer_config
    return config is not None and multi_of(config)[0] == parts_of(config).transfer


def _check_sends_nothing(deployment: Deployment) -> None:
    """Raise ConfigError for a connector between engines of which none sends anything."""
    if parts_of(deployment.serve.kv_transfer_config).transfer is not None:
        raise ConfigError("serve.kv_transfer_config", "no engine sends KV to another, as no pool has the role"
                          " 'prefill'; add pools of roles 'prefill' and 'decode' (docs/fleets.md), or leave it out")


FEATURE = ConnectorsFeature()
