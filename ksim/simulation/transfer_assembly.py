"""Builds what the transfers of a fleet need: its links, the flows on them, and where each engine has which KV."""

from ksim.engine.collective_flows import CollectiveFlows
from ksim.engine.horizon import Horizon
from ksim.flow.events import LinkBuilt, LinkUsed
from ksim.flow.log import Log
from ksim.kv_cache.cache import Cache
from ksim.kv_offload.joined import JoinedConnector, JoinedWorker
from ksim.kv_transfer.connector_worker import ConnectorWorker
from ksim.kv_transfer.endpoint import Endpoint
from ksim.kv_transfer.transfer_network import KvPlacement, TransferNetwork
from ksim.network.fleet_network import FleetNetwork
from ksim.network.flows import Flows
from ksim.network.inter_node_traffic import CollectiveTraffic
from ksim.scheduling.connector import Connector
from ksim.simulation.connector_parts import multi_of, parts_of
from ksim.simulation.connectors import connector_of
from ksim.simulation.deployment import Deployment
from ksim.simulation.fleet import Fleet
from ksim.simulation.kv_layouts import kv_layout
from ksim.simulation.offloading import Offloads, offloading_of
from ksim.simulation.pool import Placement, Pool
from ksim.specs.kv_transfer import KvTransferConfig

__all__ = ["collective_flows", "connector_and_worker", "endpoint", "fleet_network", "transfer_network"]


def fleet_network(fleet: Fleet, env: Horizon, log: Log) -> FleetNetwork | None:
    """The network of *fleet*, where any engine sends KV or offloads it: what transfers share, if requests are split."""
    if fleet.splits:
        return transfer_network(fleet, env, log)
    if not any(offloading_of(pool) for pool in fleet.pools):
        return None
    return FleetNetwork(env, fleet.links, _flows(fleet, env, log))


def transfer_network(fleet: Fleet, env: Horizon, log: Log) -> TransferNetwork:
    """What the transfers of *fleet* share; the use of links is written to *log*."""
    first = next(pool for pool in fleet.pools if pool.role == "prefill")
    return TransferNetwork(env, fleet.links, _flows(fleet, env, log), connector_of(_config(first.deployment)), log)


def _flows(fleet: Fleet, env: Horizon, log: Log) -> Flows:
    """The flows of *fleet*, which write to *log* how they use which link."""
    links = fleet.links
    log.links = [LinkBuilt(number, *link) for number, link in
                 enumerate(zip(links.names, links.kinds, links.capacities, strict=True))]
    env.coupled = True  # what one engine does moves bytes of others
    return Flows(env, links, lambda time, link, rate: log.add(LinkUsed(time, link, rate)))


def connector_and_worker(offloads: Offloads, pool: Pool, number: int, place: Placement, cache: Cache
                         ) -> tuple[Connector | None, ConnectorWorker | None, Endpoint | None]:
    """Both sides of the connector of engine *number* of *pool*, and its end of transfers; None where it has none."""
    network, settings = offloads.network, offloading_of(pool)
    own = endpoint(network, pool, number, place) if isinstance(network, TransferNetwork) else None
    if settings is None:
        return own, own, own
    connector, worker = offloads.of(settings, pool, number, place, cache)
    if own is None:
        return connector, worker, None
    order: list[Connector] = [own, connector] if _sends_first(pool) else [connector, own]
    return JoinedConnector(order), JoinedWorker(own, worker), own


def _sends_first(pool: Pool) -> bool:
    """Whether the MultiConnector of *pool* asks the connector between engines first."""
    config = pool.deployment.serve.kv_transfer_config
    return config is not None and multi_of(config)[0] == parts_of(config).transfer


def endpoint(network: TransferNetwork, pool: Pool, number: int, place: Placement) -> Endpoint:
    """The endpoint of engine *number* of *pool*."""
    deployment = pool.deployment
    config, size = _config(deployment), deployment.serve.block_size
    assert size is not None, "settings are derived before engines are built"
    placement = KvPlacement(pool.gpus(place), kv_layout(deployment))
    return Endpoint(number, placement, size, network, config.consumes, config.kv_load_failure_policy == "recompute")


def collective_flows(network: TransferNetwork, pool: Pool, place: Placement) -> CollectiveFlows | None:
    """The collectives between nodes of the engine at *place*, or of its data-parallel group; None if it lies on one
    node."""
    deployment, serve = pool.deployment, pool.deployment.serve
    size = deployment.system.gpus_per_node
    firsts = place.firsts if deployment.shards[0].data > 1 else (place.first,)
    if len({gpu // size for first in firsts for gpu in (first, first + serve.gpus - 1)}) == 1:
        return None
    traffic = CollectiveTraffic(deployment.network, network.links, pool.offset)
    return CollectiveFlows(network.env, network.flows, traffic)


def _config(deployment: Deployment) -> KvTransferConfig:
    config = parts_of(deployment.serve.kv_transfer_config).transfer
    assert config is not None, "pools of a fleet that splits requests have a connector"
    return config
