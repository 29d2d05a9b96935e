"""How GPUs are wired: a graph of them, of switches and of links, by which collectives are priced.

`ksim.network.links` has the same links by number for flows, and those to hosts and storage beside them.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from ksim.specs.hardware import Link, System

if TYPE_CHECKING:
    import networkx as nx


def fabric(system: System) -> "nx.DiGraph":
    """Wire *system*: GPUs, numbered node by node, to their switch or sockets, and through NICs to the network.

    Edges have a `kind` (nvlink, pcie, network), their `peak` in bytes/s one way and the `bandwidth` that NCCL reaches
    of it.  Edges with a `pool` share their load with the others of that pool: NCCL runs as many rings as a node has
    NICs, so what leaves a node leaves by the NICs of all its GPUs in the group, and comes in by all.
    """
    import networkx as nx

    graph = nx.DiGraph()
    per_socket = system.gpus_per_node // system.sockets
    for gpu in range(system.gpus):
        node, slot = divmod(gpu, system.gpus_per_node)
        graph.add_node(gpu, node=node)
        hub = f"node{node}.{'switch' if system.interconnect == 'nvlink' else f'socket{slot // per_socket}'}"
        _connect(graph, gpu, hub, system.inside, system.interconnect)
        if system.network is not None and system.nodes > 1:
            # A NIC of its own for each GPU: GPUDirect traffic does not share the hub.
            _connect(graph, gpu, f"nic{gpu}", Link(system.network.bandwidth), "network", "nics", node)
            _connect(graph, f"nic{gpu}", "network", system.network, "network", "ports", node)
    if system.between_sockets is not None:
        for node in range(system.nodes):
            for socket in range(1, system.sockets):
                _connect(graph, f"node{node}.socket{socket - 1}", f"node{node}.socket{socket}",
                         system.between_sockets, "pcie")
    return graph


def _connect(graph: "nx.DiGraph", a: object, b: object, link: Link, kind: str, pool: str = "", node: int = 0) -> None:
    for source, target, way in ((a, b, "out"), (b, a, "in")):
        graph.add_edge(source, target, bandwidth=link.bandwidth * link.efficiency, peak=link.bandwidth, kind=kind,
                       pool=pool and f"{pool} {way} {node}", node=node)


def path(graph: "nx.DiGraph", source: int, target: int) -> list[tuple[object, object]]:
    """The links that a message passes from one GPU to another."""
    import networkx as nx

    return list(pairwise(nx.shortest_path(graph, source, target)))
