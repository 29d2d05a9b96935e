"""The network: how long messages take over the links between GPUs.

A `Network` is a graph of GPUs, switches and links, by which collectives are priced; `ksim.network.links` has the same
links by number for flows, and those to hosts and storage beside them.  A `FleetNetwork` is a fleet's clock, its links,
and the flows on them.

The collectives of a step that cross nodes are one flow, which shares links with others.  It has the bytes that leave
the nodes, on the links from NIC to NIC that they pass, and at most the rate that they reach alone, start-up and rounds
included.  The step ends later by as much as that flow ends later than they would alone.  What collectives send inside a
node is no flow.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from math import ulp
from typing import TYPE_CHECKING, Any

import simpy
from attrs import define, evolve, field, frozen

from ksim.compute.graph import Collective, Fanout
from ksim.foundation.errors import ConfigError
from ksim.network.collectives import CollectiveAlgorithm, Round, rounds_across
from ksim.network.flows import Flow, Flows
from ksim.network.links import BY_CHANNEL, Links, Protocol, interval_factors
from ksim.network.routes import ANY, Hop, Route
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


Edge = tuple[object, object]
#: Pieces that pass each link.
Load = dict[Edge, float]


@frozen
class Played:
    """The rounds of an algorithm among certain ranks.

    Messages go through rounds one after another or, with `at_once`, flow through all.  Between nodes, the share
    `crossing` of their pieces is sent.
    """

    rounds: Sequence[Round]
    at_once: bool = False
    crossing: float = 1.0


@define(slots=False)
class Network:
    """Prices collectives among the GPUs of `system`, by the fastest of `algorithms` that takes them.

    A protocol for messages of certain sizes goes first, as its library chooses by size alone; of two such protocols,
    the first algorithm's is taken.  A collective that is given a number of SMs sends `channel` bytes a second from
    each, until links are full.
    """

    system: System
    algorithms: Mapping[str, CollectiveAlgorithm]
    #: Protocols as measured on this system, by the names of those that they stand in for.
    measured: Mapping[str, Protocol] = field(factory=dict)
    channel: float | None = None
    #: By how many standard deviations of their 90 % intervals all collectives are off.
    deviation: float = 0.0
    _routes: dict[tuple[str, str, tuple[int, ...], int, Fanout | None], list[Route]] = field(factory=dict)
    _paths: dict[tuple[int, int], list[Edge]] = field(factory=dict)
    _seconds: dict[tuple[Collective, tuple[int, ...]], float] = field(factory=dict)

    @cached_property
    def graph(self) -> "nx.DiGraph":
        """The graph of GPUs, switches and links."""
        return fabric(self.system)

    def seconds(self, collective: Collective, ranks: Sequence[int]) -> float:
        """Seconds for which *collective* keeps *ranks* busy once all of them are there."""
        if len(ranks) < 2:
            return 0.0
        key = (collective, tuple(ranks))
        if key not in self._seconds:
            route = self.route(collective, ranks)
            seconds = route.seconds(collective.bytes)
            least = min(seconds, route.least(collective.bytes))
            self._seconds[key] = max(least, seconds * route.erring(self.deviation))
        return self._seconds[key]

    def interval(self, collective: Collective, ranks: Sequence[int]) -> tuple[float, float]:
        """The ends of the 90 % interval of `seconds`."""
        if len(ranks) < 2:
            return 0.0, 0.0
        low, high = self.route(collective, ranks).interval_factors
        seconds = self.seconds(collective, ranks)
        return low * seconds, high * seconds

    def route(self, collective: Collective, ranks: Sequence[int]) -> Route:
        """The route by which *collective* is carried out; raises ConfigError if no algorithm takes it."""
        kind, size, sms = collective.kind, collective.bytes, collective.sms
        routes = [route for name, algorithm in self.algorithms.items() if algorithm.takes(kind, len(ranks), size)
                  for route in self._routes_of(name, kind, tuple(ranks), sms, collective.fanout)
                  if route.window[0] <= size < route.window[1]]
        if not routes:
            raise ConfigError("collectives", f"none of {', '.join(self.algorithms)} does {kind}"
                                             f" of {size:.0f} bytes among {len(ranks)} GPUs over these links"
                                             + (f" on {sms} SMs; 'ring' does" if sms else ""))
        ruled = [route for route in routes if route.window != ANY]
        return ruled[0] if ruled else min(routes, key=lambda route: route.seconds(size))

    def played(self, name: str, kind: str, ranks: Sequence[int], fanout: Fanout | None = None) -> "Played":
        """The rounds by which algorithm *name* does *kind* among *ranks*."""
        algorithm = self.algorithms[name]
        across = rounds_across(algorithm, kind, ranks, self._node)
        if across is None:
            return Played(list(algorithm.rounds(kind, ranks)))
        nodes = len(set(map(self._node, ranks)))
        return Played(across, True, fanout.reached(nodes) / fanout.reached(len(ranks)) if fanout else 1.0)

    def _routes_of(self, name: str, kind: str, ranks: tuple[int, ...], sms: int = 0,
                   fanout: Fanout | None = None) -> list[Route]:
        """All routes of algorithm *name* for *kind* whose protocols the links between *ranks* carry."""
        key = (name, kind, ranks, sms, fanout)
        if key not in self._routes:
            routes = self._all_routes(name, kind, ranks, fanout)
            self._routes[key] = self._limited(sms, routes) if sms else routes
        return self._routes[key]

    def _limited(self, sms: int, routes: list[Route]) -> list[Route]:
        if self.channel is None:
            raise ConfigError("overlap_sms", "nobody says what one SM of this GPU sends; give its file a `channel`")
        return [route.within(sms * self.channel) for route in routes if route.protocol in BY_CHANNEL]

    def _all_routes(self, name: str, kind: str, ranks: tuple[int, ...], fanout: Fanout | None) -> list[Route]:
        played = self.played(name, kind, ranks, fanout)
        links = {self.graph.edges[edge]["kind"] for round_ in played.rounds for t in round_
                 for edge in self._path(t.source, t.target)}
        protocols = [self.measured.get(protocol.name, protocol) for protocol in self.algorithms[name].protocols
                     if protocol.kind in ("", kind)]
        return [self._route(name, kind, ranks, played, protocol, links)
                for protocol in protocols if links <= protocol.links.keys()]

    def _route(self, name: str, kind: str, ranks: tuple[int, ...], played: "Played",
               protocol: Protocol, links: set[str]) -> Route:
        timings = [protocol.links[link] for link in links]
        windows = [timing.window(len(ranks)) for timing in timings]
        transfers = [(transfer, played.crossing if self._leaves(transfer.source, transfer.target) else 1.0)
                     for round_ in played.rounds for transfer in round_]
        sent = (sum(len({(t.source, piece) for t in round_ for piece in t.pieces}) for round_ in played.rounds)
                if protocol.merging else sum(share * len(t.pieces) for t, share in transfers))
        leaving = sum(share * len(t.pieces) for t, share in transfers if self._leaves(t.source, t.target))
        return Route(name, protocol.name, max(timing.start for timing in timings),
                     self._rounds(played, kind, ranks, protocol),
                     sent=sent / len(ranks) ** 2, routed=leaving / len(ranks) ** 2,
                     window=(max(least for least, _ in windows), min(limit for _, limit in windows)),
                     interval_factors=interval_factors(protocol.name, links, protocol.name in self.measured,
                                                       len(ranks)))

    def _rounds(self, played: "Played", kind: str, ranks: tuple[int, ...],
                protocol: Protocol) -> tuple[tuple[Hop, ...], ...]:
        """Price the rounds.  Rounds that take equally long are priced once and share one tuple."""
        hops: dict[Any, tuple[Hop, ...]] = {}
        keys = [_cost_key(round_, protocol.merging) for round_ in played.rounds]
        for key, round_ in zip(keys, played.rounds, strict=True):
            if key not in hops:
                load = self._load(round_, ranks, protocol.merging, played.crossing)
                hops[key] = self._hops(round_, load, kind, len(ranks), protocol)
        rounds = tuple(hops[key] for key in keys)
        return (tuple(chain.from_iterable(rounds)),) if played.at_once else rounds

    def _hops(self, round_: Round, load: Load, kind: str, ranks: int, protocol: Protocol) -> tuple[Hop, ...]:
        """Price a round's transfers, which share links."""
        peers = Counter(transfer.source for transfer in round_)
        shares = {link: timing.reached(kind, ranks) for link, timing in protocol.links.items()}
        hops = []
        for transfer in round_:
            path = [(load[edge] / ranks, self.graph.edges[edge])
                    for edge in self._path(transfer.source, transfer.target)]
            timings = [protocol.links[link["kind"]] for _, link in path]
            hops.append(Hop(
                transfer.source, transfer.target,
                max(timing.hop + timing.peer * (peers[transfer.source] - 1) for timing in timings),
                max(pieces / (link["bandwidth"] * shares[link["kind"]]) for pieces, link in path),
                max(pieces / link["peak"] for pieces, link in path), path[0][0], len(transfer.pieces) / ranks))
        return tuple(hops)

    def _load(self, round_: Round, ranks: tuple[int, ...], merging: bool, crossing: float = 1.0) -> Load:
        """The pieces that pass each link in a round, between nodes only the share *crossing* of them.

        A pool's load is even over its links.
        """
        passing: dict[Edge, list[int]] = {}
        for transfer in round_:
            for edge in self._path(transfer.source, transfer.target):
                passing.setdefault(edge, []).extend(transfer.pieces)
        load = {edge: float(len(set(pieces) if merging else pieces)) * (
            crossing if self.graph.edges[edge]["kind"] == "network" else 1.0) for edge, pieces in passing.items()}
        pools: dict[str, list[Edge]] = {}
        for edge in load:
            pools.setdefault(self.graph.edges[edge]["pool"], []).append(edge)
        gpus = Counter(self.graph.nodes[rank]["node"] for rank in ranks)
        for pool, edges in pools.items():
            if pool:
                share = sum(load[edge] for edge in edges) / gpus[self.graph.edges[edges[0]]["node"]]
                load.update(dict.fromkeys(edges, share))
        return load

    def pattern(self, ranks: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """What decides the links between *ranks*: equal for groups whose collectives take equally long.

        Nodes are numbered in the order in which they come; behind one switch, all GPUs of a node are alike.
        """
        size, nodes = self.system.gpus_per_node, dict[int, int]()
        places = [(nodes.setdefault(rank // size, len(nodes)), rank % size) for rank in ranks]
        if self.system.interconnect == "nvlink":
            return tuple((node, 0) for node, _ in places)
        return tuple(places)

    def _leaves(self, source: int, target: int) -> bool:
        return self._node(source) != self._node(target)

    def _node(self, rank: int) -> int:
        return rank // self.system.gpus_per_node

    def _path(self, source: int, target: int) -> list[Edge]:
        key = (source, target)
        if key not in self._paths:
            self._paths[key] = path(self.graph, source, target)
        return self._paths[key]


def _cost_key(round_: Round, merging: bool) -> tuple[Any, ...]:
    """Equal for rounds that take equally long: who sends how many pieces to whom, and which pieces where the switch
    merges equal ones."""
    return tuple((t.source, t.target, t.pieces if merging else len(t.pieces)) for t in round_)


@define(eq=False)
class FleetNetwork:
    """The clock, the links and the flows of a fleet, which transfers of KV and copies between tiers share."""

    env: simpy.Environment
    links: Links
    flows: Flows

    def at(self, moment: float, work: Callable[[], None]) -> None:
        """Call *work* at *moment*, or now if that has passed."""
        timer = self.env.timeout(max(moment - self.env.now, 0.0))
        timer.callbacks.append(lambda _: work())

    def copy(self, size: float, source: str, target: str) -> Flow:
        """Start to copy *size* bytes now, as over PCIe from a node's memory ("host0") to a GPU ("gpu3"), or of weights
        from the "storage"; the flow's `done` fires when they have arrived."""
        return self.flows.start(size, self.links.path(source, target))


#: Rounding alone makes collectives later by this share of their seconds, or by so many steps of the clock.
_ROUNDING, _STEPS = 1e-9, 8


@frozen
class InterNodeTraffic:
    """The bytes that collectives send between nodes, as one flow; alone, they take `seconds`.

    The busiest link of `path` carries `size` bytes, and each link its weight times as many.
    """

    path: tuple[int, ...]
    weights: tuple[float, ...]
    size: float
    seconds: float

    @property
    def cap(self) -> float:
        """The bytes/s that it reaches alone."""
        return self.size / self.seconds

    def late(self, flow: Flow) -> float:
        """Seconds by which *flow*, which has ended, made the collectives longer."""
        assert flow.ended is not None
        late = flow.ended - flow.began - self.seconds
        return late if late > max(_ROUNDING * self.seconds, _STEPS * ulp(flow.ended)) else 0.0

    @classmethod
    def together(cls, parts: Sequence["InterNodeTraffic"]) -> "InterNodeTraffic":
        """The flow of several collectives, one after the other."""
        seconds = sum(traffic.seconds for traffic in parts)
        if len({(traffic.path, traffic.weights) for traffic in parts}) == 1:
            return evolve(parts[0], size=sum(traffic.size for traffic in parts), seconds=seconds)
        loads: dict[int, float] = defaultdict(float)
        for traffic in parts:
            for link, weight in zip(traffic.path, traffic.weights, strict=True):
                loads[link] += weight * traffic.size
        return cls.of(loads, seconds)

    @classmethod
    def of(cls, loads: Mapping[int, float], seconds: float) -> "InterNodeTraffic":
        """The flow that takes so many bytes over each link."""
        size = max(loads.values())
        return cls(tuple(loads), tuple(load / size for load in loads.values()), size, seconds)


@define
class CollectiveTraffic:
    """The traffic between nodes of collectives on `network`, whose first GPU is number `first` of the fleet."""

    network: Network
    links: Links
    first: int = 0
    #: The flow of a message of one byte, by algorithm, kind and ranks.
    _per_byte: dict[tuple[str, str, tuple[int, ...], Fanout | None], InterNodeTraffic] = field(factory=dict)

    def of(self, collective: Collective, ranks: Sequence[int]) -> InterNodeTraffic | None:
        """The traffic between nodes of *collective* among *ranks*; None if it stays within one."""
        if not collective.bytes or len({self._node(rank) for rank in ranks}) < 2:
            return None
        key = (self.network.route(collective, ranks).algorithm, collective.kind, tuple(ranks), collective.fanout)
        if key not in self._per_byte:
            self._per_byte[key] = InterNodeTraffic.of(self._loads(*key), 1.0)
        byte = self._per_byte[key]
        seconds = self.network.seconds(collective, ranks)
        return InterNodeTraffic(byte.path, byte.weights, collective.bytes * byte.size, seconds)

    def _loads(self, algorithm: str, kind: str, ranks: tuple[int, ...], fanout: Fanout | None) -> dict[int, float]:
        """The part of a message that each link carries.

        What leaves a node leaves evenly by the NICs of its GPUs in the group, and so comes in.
        """
        members: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            members[self._node(rank)].append(self.first + rank)
        loads: dict[int, float] = defaultdict(float)
        for (source, target), pieces in self._passing(algorithm, kind, ranks, fanout).items():
            for gpus, way in ((members[source], "out"), (members[target], "in")):
                for gpu in gpus:
                    loads[self.links.nic(gpu, way)] += pieces / len(ranks) / len(gpus)
            for link in self.links.nic_path(members[source][0], members[target][0])[1:-1]:
                loads[link] += pieces / len(ranks)
        return dict(loads)

    def hop(self, hop: Hop, ranks: Sequence[int]) -> tuple[tuple[int, ...], tuple[float, ...]] | None:
        """The links that *hop* passes between nodes in a collective of *ranks*, each with its part of the bytes; None
        inside a node."""
        here, there = self._node(hop.source), self._node(hop.target)
        if here == there:
            return None
        loads: dict[int, float] = {}
        for node, way in ((here, "out"), (there, "in")):
            members = [self.first + rank for rank in ranks if self._node(rank) == node]
            loads |= {self.links.nic(gpu, way): 1.0 / len(members) for gpu in members}
        loads |= dict.fromkeys(self.links.nic_path(self.first + hop.source, self.first + hop.target)[1:-1], 1.0)
        return tuple(loads), tuple(loads.values())

    def _passing(self, algorithm: str, kind: str, ranks: tuple[int, ...],
                 fanout: Fanout | None) -> dict[tuple[int, int], float]:
        """The number of pieces that pass from each node to each other one, in all rounds."""
        played = self.network.played(algorithm, kind, ranks, fanout)
        passing: Counter[tuple[int, int]] = Counter()
        for round_ in played.rounds:
            for transfer in round_:
                passing[self._node(transfer.source), self._node(transfer.target)] += len(transfer.pieces)
        return {nodes: played.crossing * pieces for nodes, pieces in passing.items() if nodes[0] != nodes[1]}

    def _node(self, rank: int) -> int:
        return rank // self.network.system.gpus_per_node
