"""What collectives send from node to node, as flows that share links with others.

The collectives of a step that cross nodes are one flow.  It has the bytes that leave the nodes, on the links from NIC
to NIC that they pass, and at most the rate that they reach alone, start-up and rounds included.  The step ends later by
as much as that flow ends later than they would alone.  What collectives send inside a node is no flow.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import ulp

from attrs import define, evolve, field, frozen

from ksim.compute.graph import Collective
from ksim.network.flows import Flow
from ksim.network.links import Links
from ksim.network.network import Network

#: Rounding alone makes collectives later by this share of their seconds, or by so many steps of the clock.
_ROUNDING, _STEPS = 1e-9, 8


@frozen
class InterNodeTraffic:
    """What collectives that take `seconds` alone send between nodes, as one flow.

    The link of `path` that carries most has `size` bytes.  Each link carries its weight times as many.
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
    """What collectives on *network* send between nodes; its first GPU is number *first* of the fleet that has *links*.
    """

    network: Network
    links: Links
    first: int = 0
    #: The flow of a message of one byte, by algorithm, kind and ranks.
    _per_byte: dict[tuple[str, str, tuple[int, ...]], InterNodeTraffic] = field(factory=dict)

    def of(self, collective: Collective, ranks: Sequence[int]) -> InterNodeTraffic | None:
        """What *collective* among *ranks* sends between nodes; None if it stays within one."""
        if not collective.bytes or len({self._node(rank) for rank in ranks}) < 2:
            return None
        key = (self.network.route(collective, ranks).algorithm, collective.kind, tuple(ranks))
        if key not in self._per_byte:
            self._per_byte[key] = InterNodeTraffic.of(self._loads(*key), 1.0)
        byte = self._per_byte[key]
        seconds = self.network.seconds(collective, ranks)
        return InterNodeTraffic(byte.path, byte.weights, collective.bytes * byte.size, seconds)

    def _loads(self, algorithm: str, kind: str, ranks: tuple[int, ...]) -> dict[int, float]:
        """The part of a message that each link carries.

        What leaves a node leaves evenly by the NICs of its GPUs in the group, and so comes in.
        """
        members: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            members[self._node(rank)].append(self.first + rank)
        loads: dict[int, float] = defaultdict(float)
        for (source, target), pieces in self._passing(algorithm, kind, ranks).items():
            for gpus, way in ((members[source], "out"), (members[target], "in")):
                for gpu in gpus:
                    loads[self.links.nic(gpu, way)] += pieces / len(ranks) / len(gpus)
            for link in self.links.nic_path(members[source][0], members[target][0])[1:-1]:
                loads[link] += pieces / len(ranks)
        return dict(loads)

    def _passing(self, algorithm: str, kind: str, ranks: tuple[int, ...]) -> Counter[tuple[int, int]]:
        """How many pieces pass from each node to each other one, in all rounds."""
        passing: Counter[tuple[int, int]] = Counter()
        for round_ in self.network.algorithms[algorithm].rounds(kind, ranks):
            for transfer in round_:
                passing[self._node(transfer.source), self._node(transfer.target)] += len(transfer.pieces)
        return Counter({nodes: pieces for nodes, pieces in passing.items() if nodes[0] != nodes[1]})

    def _node(self, rank: int) -> int:
        return rank // self.network.system.gpus_per_node
