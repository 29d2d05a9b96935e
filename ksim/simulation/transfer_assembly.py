"""Builds what the transfers of a fleet need: its links, the flows on them, and where each engine has which KV."""

from attrs import evolve

from ksim.engine.collective_flows import CollectiveFlows
from ksim.engine.horizon import Horizon
from ksim.flow.events import LinkBuilt, LinkUsed
from ksim.flow.log import Log
from ksim.kv_transfer.endpoint import Endpoint
from ksim.kv_transfer.layout import KvLayout, LayerShare
from ksim.kv_transfer.transfer_network import KvPlacement, TransferNetwork
from ksim.network.flows import Flows
from ksim.network.inter_node_traffic import CollectiveTraffic
from ksim.simulation.connectors import connector_of
from ksim.simulation.deployment import Deployment
from ksim.simulation.drafters import kept_layers
from ksim.simulation.fleet import Fleet
from ksim.simulation.pool import Placement, Pool
from ksim.specs.kv_transfer import KvTransferConfig

__all__ = ["collective_flows", "endpoint", "kv_layout", "transfer_network"]


def transfer_network(fleet: Fleet, env: Horizon, log: Log) -> TransferNetwork:
    """What the transfers of *fleet* share; the use of links is written to *log*."""
    links = fleet.links
    log.links = [LinkBuilt(number, *link) for number, link in
                 enumerate(zip(links.names, links.kinds, links.capacities, strict=True))]
    flows = Flows(env, links, lambda time, link, rate: log.add(LinkUsed(time, link, rate)))
    env.coupled = True  # what one engine does moves bytes of others
    first = next(pool for pool in fleet.pools if pool.role == "prefill")
    return TransferNetwork(env, links, flows, connector_of(_config(first.deployment)), log)


def endpoint(network: TransferNetwork, pool: Pool, number: int, place: Placement) -> Endpoint:
    """The endpoint of engine *number* of *pool*."""
    deployment = pool.deployment
    config, size = _config(deployment), deployment.serve.block_size
    assert size is not None, "settings are derived before engines are built"
    placement = KvPlacement(pool.gpus(place), kv_layout(deployment))
    return Endpoint(number, placement, size, network, config.consumes, config.kv_load_failure_policy == "recompute")


def kv_layout(deployment: Deployment) -> KvLayout:
    """Which part of the KV cache each GPU of an engine of *deployment* has."""
    layers = []
    for stage, shard in enumerate(deployment.shards):
        parts, whole = (kept_layers(deployment.model, deployment.serve, rank)
                        for rank in (shard, evolve(shard, tensor=1)))
        for part, layer in zip(parts, whole, strict=True):
            held, all_ = part.token_bytes or part.sequence_bytes, layer.token_bytes or layer.sequence_bytes
            layers.append(LayerShare(stage, part.token_bytes, max(1, round(all_ / held)), part.sequence_bytes))
    return KvLayout(deployment.serve.tensor_parallel_size, tuple(layers))


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
    config = deployment.serve.kv_transfer_config
    assert config is not None, "pools of a fleet that splits requests have a connector"
    return config
