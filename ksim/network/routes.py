"""Routes of collectives, priced round by round; and the links of the nodes of a system within a fleet, by number."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise, repeat
from math import inf, isclose
from typing import Any

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from ksim.specs.hardware import PCIE_BOTH_WAYS, Gpu, Link, System

#: Messages of any size.
ANY = (0.0, inf)


@frozen
class Hop:
    """A transfer over a known protocol: seconds to start (`latency`), and seconds per byte of the message.

    `least` is the seconds per byte at the links' peak bandwidth.  `share` is the part of the message that the source
    sends in the round, and `passes` the part of it that the target gets.
    """

    source: int
    target: int
    latency: float
    per_byte: float
    least: float = 0.0
    share: float = 0.0
    passes: float = 0.0

    def seconds(self, size: float) -> float:
        return self.latency + size * self.per_byte

    def within(self, rate: float) -> "Hop":
        """This hop with its source limited to *rate* bytes a second."""
        return evolve(self, per_byte=max(self.per_byte, self.share / rate))


#: Sizes in bytes at which critical paths are found first; nearly all messages lie between them.
ENDS = (0.0, 2.0**40)
#: The critical path at one size: (size, seconds to start, seconds per byte).  Two sizes with equal seconds share their
#: path with all sizes between them.
Line = tuple[float, float, float]


@define(eq=False)
class CriticalPath:
    """The critical path: the slowest chain of hops through rounds in which ranks do not keep step.

    Each chain's seconds are a straight line over the message's size, and the message takes the most of any chain.
    So its seconds are convex in the size, and a chain that is slowest at two sizes is slowest at all between them.
    """

    rounds: Sequence[Sequence[Hop]]
    _lines: list[Line] = field(factory=list, init=False)

    def seconds(self, size: float) -> float:
        """Seconds of the critical path with a message of *size* bytes."""
        lines = self._lines
        if not lines:
            lines += map(self._line_at, ENDS)
        while True:
            place = bisect_left(lines, size, key=lambda line: line[0])
            if place == len(lines):
                return _at(size, self._line_at(size))
            below, above = lines[max(place - 1, 0)], lines[place]
            if above[0] == size or all(map(isclose, below[1:], above[1:])):
                return _at(size, above)
            lines[place:place] = self._between(below, above, size)

    def _between(self, below: Line, above: Line, size: float) -> list[Line]:
        """The lines to insert between two with different paths, found where these two take equally long.

        If a third path is slower there, it lies between them; otherwise nothing does.
        """
        saved = below[2] - above[2]
        crossing = (above[1] - below[1]) / saved if saved else size
        if not below[0] < crossing < above[0]:  # as good as the same
            return [self._line_at(size)]
        third = self._line_at(crossing)
        if isclose(_at(crossing, third), _at(crossing, below)):
            return [(crossing, *below[1:]), (crossing, *above[1:])]
        return [third]

    def _line_at(self, size: float) -> Line:
        """The slowest chain with a message of *size* bytes, found by going through all rounds."""
        ranks, rounds = self._columns
        latency, per_byte, ready = np.zeros((3, ranks))
        for sources, targets, start, rate in rounds:
            starts, rates = latency[sources] + start, per_byte[sources] + rate
            ends = starts + size * rates
            # Of several that end at one rank, the last counts; the slower start if a large size rounds latencies away.
            order = np.lexsort((starts, ends))
            for place in (sources, targets):
                later = order[ends[order] >= ready[place[order]]]
                at = place[later]
                latency[at], per_byte[at], ready[at] = starts[later], rates[later], ends[later]
        # Of ranks that end together, too, the slower start counts.
        last = np.lexsort((latency, ready))[-1] if ranks else 0
        return (size, float(latency[last]), float(per_byte[last])) if ranks else (size, 0.0, 0.0)

    @cached_property
    def _columns(self) -> tuple[int, list[tuple[NDArray[Any], ...]]]:
        """The number of ranks, and each round's sources, targets, seconds to start and per byte."""
        places: dict[int, int] = {}
        known: dict[int, tuple[NDArray[Any], ...]] = {}
        for hops in self.rounds:
            if id(hops) not in known:
                known[id(hops)] = (
                    np.array([places.setdefault(hop.source, len(places)) for hop in hops], np.int64),
                    np.array([places.setdefault(hop.target, len(places)) for hop in hops], np.int64),
                    np.array([hop.latency for hop in hops]), np.array([hop.per_byte for hop in hops]))
        return len(places), [known[id(hops)] for hops in self.rounds]


def _at(size: float, line: Line) -> float:
    return line[1] + size * line[2]


@frozen
class Route:
    """One way to carry out a collective: an algorithm's rounds over one protocol.

    `sent` is the bytes that a rank sends in all, on average, over the message's size; `routed` is the part of it that
    leaves its node.  `window` is the smallest message that is sent so, and the smallest that is not.
    `interval_factors` are the ends of the 90 % interval of its seconds, over these seconds.
    """

    algorithm: str
    protocol: str
    start: float
    rounds: tuple[tuple[Hop, ...], ...]
    sent: float = 0.0
    routed: float = 0.0
    window: tuple[float, float] = ANY
    interval_factors: tuple[float, float] = (1.0, 1.0)
    #: Seconds to start, and per byte, if all ranks go through the rounds in step.
    even: tuple[float, float] | None = field(init=False)
    _critical_path: CriticalPath = field(init=False, eq=False, repr=False)
    #: Seconds per byte over all rounds at peak bandwidth.
    _least: float = field(init=False, eq=False, repr=False)

    @_critical_path.default
    def _uneven(self) -> CriticalPath:
        return CriticalPath(self.rounds)

    @_least.default
    def _at_peak(self) -> float:
        most = {id(hops): max((hop.least for hop in hops), default=0.0) for hops in self.rounds}
        return sum(most[id(hops)] for hops in self.rounds)

    @even.default
    def _terms(self) -> tuple[float, float] | None:
        distinct = {id(hops): hops for hops in self.rounds}.values()  # many rounds are the same one
        alike = all(len({(hop.latency, hop.per_byte) for hop in hops}) == 1 for hops in distinct)
        # Whoever sends had part in the round before, so nobody is ahead.
        in_step = all({hop.source for hop in hops} <= {rank for hop in before for rank in (hop.source, hop.target)}
                      for before, hops in {(id(one), id(two)): (one, two)
                                           for one, two in pairwise(self.rounds)}.values())
        if not (alike and in_step):
            return None
        return sum(hops[0].latency for hops in self.rounds), sum(hops[0].per_byte for hops in self.rounds)

    def seconds(self, size: float) -> float:
        """Seconds from the arrival of the last rank until every rank has its result."""
        if self.even is not None:
            return self.start + self.even[0] + size * self.even[1]
        return self.start + self._critical_path.seconds(size)

    def erring(self, deviation: float) -> float:
        """The factor of its seconds where they are off by so many standard deviations.

        Either end of the 90 % interval is 1.6449 standard deviations away.
        """
        low, high = self.interval_factors
        return float((low if deviation < 0 else high) ** (abs(deviation) / 1.6449))

    def within(self, rate: float) -> "Route":
        """This route with every rank limited to *rate* bytes a second."""
        slower = {id(hops): tuple(hop.within(rate) for hop in hops) for hops in self.rounds}
        return evolve(self, rounds=tuple(slower[id(hops)] for hops in self.rounds))

    def slowed(self, shares: Mapping[int, float]) -> "Route":
        """This route with some ranks that have only a share of their links' bandwidth."""
        def slower(hop: Hop) -> Hop:
            share = min(shares.get(hop.source, 1.0), shares.get(hop.target, 1.0))
            return hop if share == 1.0 else evolve(hop, per_byte=hop.per_byte / share)
        rounds = {id(hops): tuple(map(slower, hops)) for hops in self.rounds}
        return evolve(self, rounds=tuple(rounds[id(hops)] for hops in self.rounds))

    def least(self, size: float) -> float:
        """Seconds of its rounds without latency and at peak bandwidth: the lower bound."""
        return size * self._least


#: Kinds of links.  `PCIE_JOINT` is what a GPU's lanes carry both ways together.
NVLINK, PCIE, PCIE_JOINT, SOCKETS, NIC, LEAF, STORAGE, DISK = KINDS = (
    "nvlink", "pcie", "pcie_joint", "sockets", "nic", "leaf", "storage", "disk")
WAYS = ("out", "in")


@frozen
class Machines:
    """The nodes of one system in a fleet, and the GPU that they have; with `disks` there are links to those."""

    system: System
    gpu: Gpu
    disks: bool = False


@frozen
class LinkSpec:
    """A link in one direction: `name` is that of a link of a GPU, a node or a leaf switch, without its number.

    Flows can use its `capacity` in bytes/s; `peak` is its line rate.
    """

    name: str
    kind: str
    capacity: float
    peak: float


@define(slots=False)
class SystemLinks:
    """The links of *machines*: those of each GPU, of each node and of each leaf switch, and those that all share."""

    machines: Machines

    @cached_property
    def gpu(self) -> tuple[LinkSpec, ...]:
        """The links of each GPU."""
        system = self.machines.system
        nvlink = system.inside if system.interconnect == "nvlink" else None
        return (*_both("NVLink", NVLINK, nvlink), *self._pcie(), *_both("NIC", NIC, system.network))

    def _pcie(self) -> Iterator[LinkSpec]:
        pcie = self.machines.system.pcie
        peak = self.machines.gpu.pcie if pcie.bandwidth is None else pcie.bandwidth
        one_way = Link(peak, pcie.efficiency)
        yield from _both("PCIe", PCIE, one_way)
        joint = PCIE_BOTH_WAYS * peak * pcie.efficiency if pcie.joint is None else pcie.joint
        yield LinkSpec("PCIe both ways", PCIE_JOINT, joint, 2 * peak)

    @cached_property
    def node(self) -> tuple[LinkSpec, ...]:
        """The links of each node: from each socket to the next and back, to the storage, and to its disks."""
        system = self.machines.system
        storage = Link(system.storage.node) if system.storage and system.storage.node else None
        return (*(spec for socket in range(1, system.sockets)
                  for spec in _both(f"socket{socket - 1}", SOCKETS, system.between_sockets)),
                *_both("storage", STORAGE, storage), *self._disk())

    def _disk(self) -> Iterator[LinkSpec]:
        """The links from the disks of a node, and to them."""
        disk = self.machines.system.disk
        if disk and self.machines.disks:
            yield LinkSpec("disk out", DISK, disk.read, disk.read)
            yield LinkSpec("disk in", DISK, disk.write, disk.write)

    @cached_property
    def leaf(self) -> tuple[LinkSpec, ...]:
        """The links of each leaf switch to the spine."""
        system = self.machines.system
        if system.leaf is None or system.network is None:
            return ()
        nics = system.leaf.nodes * system.gpus_per_node / system.leaf.oversubscription
        return tuple(_both("spine", LEAF, Link(nics * system.network.bandwidth, system.network.efficiency)))

    @cached_property
    def shared(self) -> tuple[LinkSpec, ...]:
        """The links of the storage."""
        storage = self.machines.system.storage
        return tuple(_both("", STORAGE, Link(storage.servers * storage.bandwidth))) if storage else ()

    @property
    def by_kind(self) -> dict[str, LinkSpec]:
        """A link of each kind; of the storage, the link of its servers."""
        return {spec.kind: spec for spec in (*self.gpu, *self.node, *self.leaf, *self.shared)}

    @cached_property
    def leaves(self) -> int:
        """The number of leaf switches."""
        system = self.machines.system
        return -(-system.nodes // system.leaf.nodes) if system.leaf else 0

    @cached_property
    def places(self) -> Mapping[str, Mapping[str, int]]:
        """The places of links by name, among those of a GPU and of a node."""
        return {part: {spec.name: index for index, spec in enumerate(specs)}
                for part, specs in (("gpu", self.gpu), ("node", self.node))}


def _both(name: str, kind: str, link: Link | None) -> Iterator[LinkSpec]:
    """*link* out and in; nothing without one."""
    if link is not None:
        for way in WAYS:
            yield LinkSpec(f"{name} {way}".strip(), kind, link.bandwidth * link.efficiency, link.bandwidth)


@frozen
class NodeGroup:
    """The nodes of one system, and the numbers of their first GPU, node, leaf switch and link in the fleet."""

    links: SystemLinks
    index: int
    gpu: int
    node: int
    leaf: int
    link: int

    @property
    def system(self) -> System:
        return self.links.machines.system

    @property
    def size(self) -> int:
        """The GPUs of a node."""
        return self.system.gpus_per_node

    @property
    def nodes(self) -> int:
        return self.system.nodes

    @property
    def stride(self) -> int:
        """The links of a node, with those of its GPUs."""
        return self.size * len(self.links.gpu) + len(self.links.node)

    def after(self, machines: Machines) -> "NodeGroup":
        """The group of *machines*, numbered on from this one."""
        return NodeGroup(SystemLinks(machines), self.index + 1, self.gpu + self.nodes * self.size,
                         self.node + self.nodes, self.leaf + self.links.leaves, self._shared + len(self.links.shared))

    @property
    def _leaves(self) -> int:
        return self.link + self.nodes * self.stride

    @property
    def _shared(self) -> int:
        return self._leaves + self.links.leaves * len(self.links.leaf)

    def columns(self, of: Callable[[LinkSpec], float | str]) -> Iterator[float | str]:
        """The values of *of* for each link, in the order of their numbers."""
        links = self.links
        gpu, node, leaf, shared = ([of(spec) for spec in specs]
                                   for specs in (links.gpu, links.node, links.leaf, links.shared))
        return chain((gpu * self.size + node) * self.nodes, leaf * links.leaves, shared)

    def names(self) -> Iterator[str]:
        """The names of its links, in the order of their numbers."""
        links = self.links
        for node in range(self.nodes):
            for slot in range(self.size):
                yield from _named(f"gpu{self.gpu + node * self.size + slot}", links.gpu)
            yield from _named(f"node{self.node + node}", links.node)
        for leaf in range(links.leaves):
            yield from _named(f"leaf{self.leaf + leaf}", links.leaf)
        yield from _named(f"storage{self.index or ''}", links.shared)

    def gpu_link(self, gpu: int, name: str) -> int:
        """The number of a link of the GPU that has number *gpu* in the fleet."""
        node, slot = divmod(gpu - self.gpu, self.size)
        return (self.link + node * self.stride + slot * len(self.links.gpu) + self.links.places["gpu"][name])

    def node_links(self, node: int, *names: str) -> Iterator[int]:
        """The numbers of links of a node, leaving out those that its nodes do not have."""
        first = self.link + (node - self.node) * self.stride + self.size * len(self.links.gpu)
        places = self.links.places["node"]
        return (first + places[name] for name in names if name in places)

    def leaf_of(self, node: int) -> int | None:
        """The leaf switch that *node* is at."""
        leaf = self.system.leaf
        return None if leaf is None else self.leaf + (node - self.node) // leaf.nodes

    def leaf_link(self, leaf: int | None, way: int) -> Iterator[int]:
        """The link of a *leaf* switch to the spine, out (0) or in (1)."""
        if leaf is not None:
            yield self._leaves + (leaf - self.leaf) * len(self.links.leaf) + way

    def storage_link(self, way: int) -> int:
        return self._shared + way

    def socket_of(self, gpu: int) -> int:
        return (gpu - self.gpu) % self.size * self.system.sockets // self.size


def _named(owner: str, specs: Sequence[LinkSpec]) -> Iterator[str]:
    return map(" ".join, zip(repeat(owner), (spec.name for spec in specs)))
