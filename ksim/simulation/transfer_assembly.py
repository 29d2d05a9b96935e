"""Builds what the transfers of a fleet need: its links, the flows on them, and where each engine has which KV.

What messages between GPUs cost: time, bandwidth and energy, by kind, size and number of GPUs.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from attrs import frozen

from ksim.compute.graph import Collective, CollectiveKind
from ksim.cost.pricer import Pricer
from ksim.engine.event_engine import CollectiveFlows
from ksim.engine.loop_times import Horizon
from ksim.flow.events import LinkBuilt, LinkUsed
from ksim.flow.log import Log
from ksim.flow.steps import KernelCost
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit, UnknownName
from ksim.kv.cache import Cache
from ksim.kv.offload.connector import JoinedConnector, JoinedWorker
from ksim.kv.transfer.endpoint import ConnectorWorker, Endpoint
from ksim.kv.transfer.transfer import KvPlacement, TransferNetwork
from ksim.network.flows import Flows
from ksim.network.network import CollectiveTraffic, FleetNetwork
from ksim.scenario.connector_parts import multi_of, parts_of
from ksim.scenario.defaults import Deployment
from ksim.scenario.hardware import gpu_of, network_of, system_of
from ksim.scenario.scenario import COLLECTIVES
from ksim.scheduling.connector import Connector
from ksim.simulation.connectors import connector_of
from ksim.simulation.fleet import Fleet
from ksim.simulation.offloading import Offloads, kv_layout, offloading_of
from ksim.simulation.pool import Placement, Pool
from ksim.specs.configs import KvTransferConfig

__all__ = ["collective_flows", "connector_and_worker", "endpoint", "fleet_network", "transfer_network", "Message",
           "messages"]


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
    config = _config(deployment)
    placement = KvPlacement(pool.gpus(place), kv_layout(deployment))
    return Endpoint(number, placement, deployment.block_tokens, network, config.consumes,
                    config.kv_load_failure_policy == "recompute")


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


KINDS: tuple[str, ...] = get_args(CollectiveKind)
#: How often (ranks - 1) / ranks of a message passes each link, as nccl-tests count it.  Other messages pass it once.
_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}

#: The largest message, in bytes: more than all memory of a large system.
_LARGEST = 1e15


@frozen
class Message:
    """A collective of `bytes`, as nccl-tests count them, among `ranks` GPUs.

    `joules` are those of all GPUs; of these, `idle_joules` is their idle power.
    """

    kind: str
    ranks: int
    bytes: float
    span: KernelCost
    joules: float
    idle_joules: float

    @property
    def seconds(self) -> float:
        return self.span.seconds

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second that each link carries at least."""
        passes = _PASSES[self.kind] * (self.ranks - 1) / self.ranks if self.kind in _PASSES else 1.0
        return passes * self.bytes / self.seconds

    @property
    def joules_per_bit(self) -> float:
        """Joules of all GPUs per bit of the message."""
        return self.joules / (8 * self.bytes)


def messages(gpu: str | None, system: str | None, nodes: int | None, kinds: Sequence[str], ranks: Sequence[int],
             sizes: Iterable[float]) -> Iterator[Message]:
    """Price messages on the usual system of *gpu*, or on *system*.

    Raises UnknownName for an unknown kind, GPU or system, DoesNotFit for more GPUs than the system has, and ConfigError
    for fewer than two GPUs or a message without bytes.
    """
    server, wanted = system_of(gpu, system, nodes), sorted(sizes)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UnknownName("collective", unknown[0], KINDS)
    if not ranks or min(ranks) < 2:
        raise ConfigError("ranks", f"{min(ranks, default=0)} GPUs have nobody to send to; name 2 or more")
    if max(ranks) > server.gpus:
        raise DoesNotFit(f"{server.name} has {server.gpus} GPUs, not {max(ranks)}; set nodes to"
                         f" {-(-max(ranks) // server.gpus_per_node)} or more")
    if not wanted or wanted[0] <= 0:
        raise ConfigError("sizes", "messages have at least one byte")
    if wanted[-1] > _LARGEST:
        raise ConfigError("sizes", f"messages have at most {_LARGEST:g} bytes, not {wanted[-1]:g}")
    network = network_of(server, map(Choice, COLLECTIVES))
    for count in ranks:
        pricer = Pricer(gpu_of(server.gpu), None, network, {"all": range(count)})
        for kind in kinds:
            yield from (_message(pricer, kind, count, size) for size in wanted)


def _message(pricer: Pricer, kind: str, ranks: int, size: float) -> Message:
    span = pricer.collective(kind, Collective(kind, size, "all"))  # type: ignore[arg-type]
    idle = ranks * pricer.gpu.power.idle * span.seconds
    return Message(kind, ranks, size, span, ranks * span.joules + idle, idle)
