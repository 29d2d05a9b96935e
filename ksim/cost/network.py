"""The network: a graph of GPUs, switches and links that prices messages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import networkx as nx
from attrs import define, field, frozen

from ksim.compute.graph import Collective
from ksim.cost.collectives import CollectiveAlgorithm, Round
from ksim.cost.protocols import Protocol
from ksim.foundation.errors import ConfigError
from ksim.specs.hardware import Link, System

Edge = tuple[object, object]


def fabric(system: System) -> nx.DiGraph:
    """Wire *system*: GPUs, numbered node by node, to their switch or sockets, and through NICs to the network.

    Edges have a `kind` (nvlink, pcie, network) and the `bandwidth` in bytes/s that NCCL reaches one way.
    """
    graph = nx.DiGraph()
    per_socket = system.gpus_per_node // system.sockets
    for gpu in range(system.gpus):
        node, slot = divmod(gpu, system.gpus_per_node)
        hub = f"node{node}.{'switch' if system.interconnect == 'nvlink' else f'socket{slot // per_socket}'}"
        _connect(graph, gpu, hub, system.inside, system.interconnect)
        if system.network is not None and system.nodes > 1:
            # A NIC of its own for each GPU: GPUDirect traffic does not share the hub.
            _connect(graph, gpu, f"nic{gpu}", Link(system.network.bandwidth), "network")
            _connect(graph, f"nic{gpu}", "network", system.network, "network")
    if system.between_sockets is not None:
        for node in range(system.nodes):
            for socket in range(1, system.sockets):
                _connect(graph, f"node{node}.socket{socket - 1}", f"node{node}.socket{socket}",
                         system.between_sockets, "pcie")
    return graph


def _connect(graph: nx.DiGraph, a: object, b: object, link: Link, kind: str) -> None:
    for source, target in ((a, b), (b, a)):
        graph.add_edge(source, target, bandwidth=link.bandwidth * link.efficiency, kind=kind)


@frozen
class Hop:
    """A transfer once its protocol is known: seconds to start, and seconds per byte of the message."""

    source: int
    target: int
    latency: float
    per_byte: float

    def seconds(self, size: float) -> float:
        return self.latency + size * self.per_byte


@frozen
class Route:
    """One way to carry out a collective: an algorithm's rounds over one protocol.

    `sent` is how often a rank sends the message's size in all, on average.
    """

    algorithm: str
    protocol: str
    start: float
    rounds: tuple[tuple[Hop, ...], ...]
    sent: float = 0.0
    #: Where all ranks go through the rounds in step: seconds to start, and per byte.
    even: tuple[float, float] | None = field(init=False)

    @even.default
    def _terms(self) -> tuple[float, float] | None:
        alike = all(len({(hop.latency, hop.per_byte) for hop in hops}) == 1 for hops in self.rounds)
        # Whoever sends had part in the round before, so nobody is ahead.
        in_step = all({hop.source for hop in hops} <= {rank for hop in before for rank in (hop.source, hop.target)}
                      for before, hops in pairwise(self.rounds))
        if not (alike and in_step):
            return None
        return sum(hops[0].latency for hops in self.rounds), sum(hops[0].per_byte for hops in self.rounds)

    def seconds(self, size: float) -> float:
        """From the moment all ranks are there until the last has what it was promised."""
        if self.even is not None:
            return self.start + self.even[0] + size * self.even[1]
        ready: dict[int, float] = {}
        for hops in self.rounds:
            through = dict(ready)
            for hop in hops:
                end = ready.get(hop.source, 0.0) + hop.seconds(size)
                for rank in (hop.source, hop.target):
                    through[rank] = max(through.get(rank, 0.0), end)
            ready = through
        return self.start + max(ready.values(), default=0.0)


@define
class Network:
    """Prices collectives; `algorithms` to choose among, for each kind the fastest that takes it."""

    graph: nx.DiGraph
    algorithms: Mapping[str, CollectiveAlgorithm]
    _routes: dict[tuple[str, str, tuple[int, ...]], list[Route]] = field(factory=dict)
    _paths: dict[tuple[int, int], list[Edge]] = field(factory=dict)
    _seconds: dict[tuple[Collective, tuple[int, ...]], float] = field(factory=dict)

    def seconds(self, collective: Collective, ranks: Sequence[int]) -> float:
        """How long *collective* keeps *ranks* busy once all of them are there."""
        if len(ranks) < 2:
            return 0.0
        key = (collective, tuple(ranks))
        if key not in self._seconds:
            self._seconds[key] = self.route(collective, ranks).seconds(collective.bytes)
        return self._seconds[key]

    def route(self, collective: Collective, ranks: Sequence[int]) -> Route:
        """The fastest way to carry out *collective*; raises ConfigError if no algorithm takes it."""
        kind, size = collective.kind, collective.bytes
        routes = [route for name, algorithm in self.algorithms.items() if algorithm.takes(kind, len(ranks), size)
                  for route in self._ways(name, kind, tuple(ranks))]
        if not routes:
            raise ConfigError("collectives", f"none of {', '.join(self.algorithms)} does {kind}"
                                             f" of {size:.0f} bytes among {len(ranks)} GPUs over these links")
        return min(routes, key=lambda route: route.seconds(size))

    def _ways(self, name: str, kind: str, ranks: tuple[int, ...]) -> list[Route]:
        """All ways that algorithm *name* has to do *kind*, where the links between *ranks* carry its protocols."""
        key = (name, kind, ranks)
        if key not in self._routes:
            self._routes[key] = self._found(*key)
        return self._routes[key]

    def _found(self, name: str, kind: str, ranks: tuple[int, ...]) -> list[Route]:
        algorithm = self.algorithms[name]
        rounds = list(algorithm.rounds(kind, ranks))
        kinds = {self.graph.edges[edge]["kind"] for round_ in rounds for t in round_
                 for edge in self._path(t.source, t.target)}
        sent = sum(len(t.pieces) for round_ in rounds for t in round_) / len(ranks) ** 2
        return [Route(name, protocol.name, protocol.start,
                      tuple(self._hops(round_, len(ranks), protocol) for round_ in rounds), sent)
                for protocol in algorithm.protocols if kinds <= protocol.hop.keys()]

    def _hops(self, round_: Round, ranks: int, protocol: Protocol) -> tuple[Hop, ...]:
        """Price a round's transfers, which share the links that they have in common."""
        load: Counter[Edge] = Counter()
        for transfer in round_:
            for edge in self._path(transfer.source, transfer.target):
                load[edge] += len(transfer.pieces)
        hops = []
        for transfer in round_:
            path = self._path(transfer.source, transfer.target)
            latency = max(protocol.hop[self.graph.edges[edge]["kind"]] for edge in path)
            per_byte = max(load[edge] / self.graph.edges[edge]["bandwidth"] for edge in path) / ranks
            hops.append(Hop(transfer.source, transfer.target, latency, per_byte / protocol.share))
        return tuple(hops)

    def _path(self, source: int, target: int) -> list[Edge]:
        key = (source, target)
        if key not in self._paths:
            self._paths[key] = list(pairwise(nx.shortest_path(self.graph, source, target)))
        return self._paths[key]
