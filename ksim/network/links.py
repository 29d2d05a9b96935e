"""All links of a fleet, numbered, those that bytes pass from one end to another, and the protocols over them.

A `Protocol` is the cost of a message's start, hops and bandwidth over each kind of link, and its 90 % interval.
Where a system names no `transports` that were measured, NCCL's values are those of its own tuning model
(src/graph/tuning.cc, master of June 2026, single-node bases and hops); LL's share is its cap of 87.7, 141 and
282 GB/s on A100, Hopper and Blackwell over their NVLink buses of 240, 371 and 722 GB/s.  GPUs that read each
other's memory, as vLLM's all-reduce does, then have what H200 took before one-shot and two-shot were told apart
(AIConfigurator 095f58a, 2 to 8 GPUs, 256 B to 8 MiB).  What only a switch that adds can do has no such values:
it is there where it was measured.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import chain
from typing import NoReturn

from attrs import define, evolve, field, frozen

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.network.routes import Machines, NodeGroup, SystemLinks
from ksim.specs.hardware import System, Timing, Transport

Path = tuple[int, ...]


@frozen
class _End:
    """An end of a path: a GPU, or a node's memory or disks (`gpu` is None)."""

    name: str
    group: NodeGroup
    node: int
    gpu: int | None = None

    @property
    def kind(self) -> str:
        return self.name.rstrip("0123456789")


@define(slots=False)
class Links:
    """Every link of a fleet.  Each direction is a link of its own, and so is what PCIe carries both ways together.

    Links are numbered from 0: those of each GPU, of each node, of each leaf switch and of the storage, system by
    system.  GPUs are numbered through all machines, node by node.
    """

    machines: Sequence[Machines]
    _groups: Sequence[NodeGroup]
    _paths: dict[tuple[str, str], Path] = field(factory=dict)
    _ends: dict[str, _End] = field(factory=dict)

    @classmethod
    def of(cls, machines: Sequence[Machines]) -> "Links":
        """Number the links of *machines*."""
        groups: list[NodeGroup] = []
        for part in machines:
            groups.append(groups[-1].after(part) if groups else NodeGroup(SystemLinks(part), 0, 0, 0, 0, 0))
        return cls(tuple(machines), groups)

    @cached_property
    def names(self) -> Sequence[str]:
        """The name of each link, such as "gpu7 NIC out"."""
        return tuple(chain.from_iterable(group.names() for group in self._groups))

    @cached_property
    def kinds(self) -> Sequence[str]:
        """The kind of each link: one of `system_links.KINDS`."""
        return tuple(str(kind) for group in self._groups for kind in group.columns(lambda spec: spec.kind))

    @cached_property
    def capacities(self) -> Sequence[float]:
        """The bytes/s that flows can use of each link."""
        return tuple(float(rate) for group in self._groups for rate in group.columns(lambda spec: spec.capacity))

    @cached_property
    def peaks(self) -> Sequence[float]:
        """The line rate of each link in bytes/s."""
        return tuple(float(rate) for group in self._groups for rate in group.columns(lambda spec: spec.peak))

    def line_rate(self, path: Sequence[int]) -> float:
        """The least line rate on *path* in bytes/s; inf for one without links."""
        return min((self.peaks[link] for link in path), default=float("inf"))

    def path(self, source: str, target: str) -> Path:
        """The links that bytes pass from *source* to *target*, each a "gpu7", a node's memory "host0" or disks "disk0",
        or the "storage".

        It is empty from an end to itself.  Raises ConfigError where there is no path.
        """
        if (source, target) not in self._paths:
            self._paths[source, target] = tuple(self._way(source, target))
        return self._paths[source, target]

    def node(self, gpu: int) -> int:
        """The number of the node that has GPU number *gpu*."""
        return self._end(f"gpu{gpu}").node

    def nic_path(self, source: int, target: int) -> Path:
        """The links between two GPUs of different nodes from NIC to NIC, without the PCIe lanes before and behind."""
        return tuple(self._between(self._end(f"gpu{source}"), self._end(f"gpu{target}")))

    def nic(self, gpu: int, way: str) -> int:
        """The link "out" of or "in" through the NIC of *gpu*."""
        return self._end(f"gpu{gpu}").group.gpu_link(gpu, f"NIC {way}")

    def _way(self, source: str, target: str) -> Iterator[int]:
        if source == target:
            return iter(())
        if "storage" in (source, target):
            way, end = (0, target) if source == "storage" else (1, source)
            return self._stored(self._end(end), way)
        a, b = self._end(source), self._end(target)
        if "disk" in (a.kind, b.kind):
            return _disks(a, b)
        if a.node == b.node:
            return _inside(a, b)
        return chain(_to_nic(a, 0), self._between(a, b), _to_nic(b, 1))

    def _stored(self, end: _End, way: int) -> Iterator[int]:
        """The links from (0) or to (1) the storage."""
        if not end.group.links.shared:
            _no_path("storage", end.name, f"give the file of {end.group.system.name!r} a [storage]")
        yield end.group.storage_link(way)
        yield from end.group.node_links(end.node, f"storage {'in' if way == 0 else 'out'}")
        if end.gpu is not None:
            yield from _lanes(end, "in" if way == 0 else "out")

    def _between(self, a: _End, b: _End) -> Iterator[int]:
        """The links from NIC to NIC; a node's memory uses the NIC of the other end's GPU, or the first one."""
        for end in (a, b):
            if end.group.system.network is None:
                _no_path(a.name, b.name, f"give the file of {end.group.system.name!r} a [network], or keep in one node"
                                         " what exchanges KV")
        yield a.group.gpu_link(_by_nic(a, b), "NIC out")
        leaves = a.group.leaf_of(a.node), b.group.leaf_of(b.node)
        if leaves[0] is None or leaves[0] != leaves[1]:
            yield from a.group.leaf_link(leaves[0], 0)
            yield from b.group.leaf_link(leaves[1], 1)
        yield b.group.gpu_link(_by_nic(b, a), "NIC in")

    def _end(self, name: str) -> _End:
        if name not in self._ends:
            self._ends[name] = self._find(name)
        return self._ends[name]

    def _find(self, name: str) -> _End:
        kind, digits = name.rstrip("0123456789"), name[len(name.rstrip("0123456789")):]
        if kind in ("gpu", "host", "disk") and digits:
            number = int(digits)
            firsts = [group.gpu if kind == "gpu" else group.node for group in self._groups]
            group = self._groups[max(bisect_right(firsts, number) - 1, 0)]
            node = group.node + (number - group.gpu) // group.size if kind == "gpu" else number
            if node < group.node + group.nodes:
                return _End(name, group, node, number if kind == "gpu" else None)
        last = self._groups[-1].after(self._groups[-1].links.machines)
        raise ConfigError("network", f"there is no {name!r}: the fleet has gpu0 to gpu{last.gpu - 1}, host0 to"
                                     f" host{last.node - 1}, and storage; more nodes have more")


def _inside(a: _End, b: _End) -> Iterator[int]:
    """The links within a node: over NVLink, or over PCIe through the sockets."""
    if a.gpu is None or b.gpu is None:
        return _lanes(b, "in") if a.gpu is None else _lanes(a, "out")
    if a.group.system.interconnect == "nvlink":
        return iter((a.group.gpu_link(a.gpu, "NVLink out"), b.group.gpu_link(b.gpu, "NVLink in")))
    return chain(_lanes(a, "out"), _through_sockets(a, a.group.socket_of(a.gpu), b.group.socket_of(b.gpu)),
                 _lanes(b, "in"))


def _disks(a: _End, b: _End) -> Iterator[int]:
    """The links from a node's disks to its memory, or back."""
    if {a.kind, b.kind} != {"disk", "host"} or a.node != b.node:
        _no_path(a.name, b.name, "what is on disks passes the memory of their node")
    if not a.group.links.machines.disks or a.group.system.disk is None:
        _no_path(a.name, b.name, f"give the file of {a.group.system.name!r} a [disk]")
    return a.group.node_links(a.node, "disk out" if a.kind == "disk" else "disk in")


def _through_sockets(end: _End, first: int, last: int) -> Iterator[int]:
    way = "out" if first < last else "in"
    return end.group.node_links(end.node, *(f"socket{socket} {way}"
                                           for socket in range(min(first, last), max(first, last))))


def _lanes(end: _End, way: str) -> Iterator[int]:
    if end.gpu is not None:
        yield end.group.gpu_link(end.gpu, f"PCIe {way}")
        yield end.group.gpu_link(end.gpu, "PCIe both ways")


def _to_nic(end: _End, way: int) -> Iterator[int]:
    """The link from a GPU to its NIC (0) or back (1), where its lanes carry that."""
    return _lanes(end, ("out", "in")[way]) if end.group.system.pcie.nics else iter(())


def _by_nic(end: _End, other: _End) -> int:
    """The GPU whose NIC bytes of *end* pass."""
    if end.gpu is not None:
        return end.gpu
    slot = 0 if other.gpu is None else (other.gpu - other.group.gpu) % other.group.size
    return end.group.gpu + (end.node - end.group.node) * end.group.size + slot % end.group.size


def _no_path(source: str, target: str, advice: str) -> NoReturn:
    raise ConfigError("network", f"there is no path from {source} to {target}; {advice}")


@frozen
class Protocol:
    """A transport protocol, with its timing on each kind of link that carries it.

    `merging` protocols let the switch add pieces up and copy them, so that each passes a GPU's link once a round.
    One of a `kind` is for collectives of that kind alone.
    """

    name: str
    links: Mapping[str, Timing]
    merging: bool = False
    kind: str = ""


def _nccl(name: str, start: float, hops: tuple[float, float, float], share: float) -> Protocol:
    return Protocol(name, {link: Timing(start, share, hop)
                           for link, hop in zip(("nvlink", "pcie", "network"), hops, strict=True)})


_LL = (6.6e-6, (0.6e-6, 1.0e-6, 2.7e-6), 0.38)
_SIMPLE = (8.4e-6, (3.4e-6, 5.7e-6, 14.0e-6), 1.0)
#: Of rings.
NCCL = (_nccl("LL", *_LL), _nccl("LL128", 14.0e-6, (1.9e-6, 2.5e-6, 4.0e-6), 0.92), _nccl("Simple", *_SIMPLE))
#: Of grouped sends and receives, which LL128 is not for.
POINT_TO_POINT = (_nccl("p2p-LL", *_LL), _nccl("p2p-Simple", *_SIMPLE))
NVLS = (Protocol("NVLS", {}, merging=True),)
#: Those that can be told how many SMs to take: NCCL's rings have a channel on each.  So has NVLS, but nobody says what
#: one of its channels carries; vLLM's kernels have as many thread blocks as they have.
BY_CHANNEL = frozenset(protocol.name for protocol in (*NCCL, *POINT_TO_POINT))

_LIMIT, _KIB = 8 * 2**20, 2**10
#: vLLM's rule: one round for two GPUs, for four below 512 KiB and for more below 256 KiB; nothing from 8 MiB.
ONE_SHOT = (Protocol("one-shot", {"nvlink": Timing(3.4e-6, 0.85, 1.0e-6, sizes={
    2: (0, _LIMIT), 4: (0, 512 * _KIB), 6: (0, 256 * _KIB), 8: (0, 256 * _KIB)})}),)
TWO_SHOT = (Protocol("two-shot", {"nvlink": Timing(3.4e-6, 0.85, 1.0e-6, sizes={
    4: (512 * _KIB, _LIMIT), 6: (256 * _KIB, _LIMIT), 8: (256 * _KIB, _LIMIT)})}),)
SYMMETRIC = (Protocol("symmetric", {}, merging=True),)
#: TensorRT-LLM's all-reduce, there where it was measured.
FUSED = (Protocol("fused", {}),)
FUSED_TWO_SHOT = (Protocol("fused-two-shot", {}),)
#: DeepEP's kernels within a node and among several, there where they were measured.
DEEPEP = tuple(Protocol(f"deepep-{among}{kind}", {}, kind=kind) for among in ("", "nodes-") for kind in (
    "dispatch", "combine", "low_latency_dispatch", "low_latency_combine"))


def measured(system: System, transports: Iterable[Transport]) -> dict[str, Protocol]:
    """Protocols as measured over links of *system*; over all others they remain what they are.

    Raises UnknownName for a protocol that there is not.
    """
    known = {protocol.name: protocol for protocol in (
        *NCCL, *POINT_TO_POINT, *NVLS, *ONE_SHOT, *TWO_SHOT, *SYMMETRIC, *FUSED, *FUSED_TWO_SHOT, *DEEPEP)}
    protocols: dict[str, Protocol] = {}
    for transport in transports:
        for link, timings in ((system.interconnect, transport.protocols), ("network", transport.network)):
            for name, timing in timings.items():
                if name not in known:
                    raise UnknownName("protocol", name, list(known))
                before = protocols.get(name, known[name])
                protocols[name] = evolve(before, links={**before.links, link: timing})
    return protocols


#: Where transports were measured: the 5 and 95 % quantiles of measured over predicted, over all rows of AIConfigurator
#: 095f58a (NCCL's collectives, and vLLM's all-reduce while it does not leave it to NCCL) that are priced by the
#: protocol.  They are the rows that it was fitted to.  Fitted to one GPU alone, NCCL's intervals hold 85 to 91 % of the
#: times of another of the same NVLink generation (H100 and H200, B200 and its kin); PCIe boxes differ by far more.
FITTED: Mapping[tuple[str, str], tuple[float, float]] = {
    ("LL", "nvlink"): (0.94, 1.12),  # 700 rows
    ("LL128", "nvlink"): (0.89, 1.28),  # 1,220
    ("Simple", "nvlink"): (0.92, 1.10),  # 835
    ("NVLS", "nvlink"): (0.88, 1.16),  # 56
    ("p2p-LL", "nvlink"): (0.86, 1.33),  # 417
    ("p2p-Simple", "nvlink"): (0.87, 1.16),  # 558
    ("one-shot", "nvlink"): (0.93, 1.06),  # 228
    ("two-shot", "nvlink"): (0.92, 1.09),  # 35
    ("symmetric", "nvlink"): (0.95, 1.06),  # 43
    ("fused", "nvlink"): (0.90, 1.09),  # 234 rows of TensorRT-LLM's
    ("fused-two-shot", "nvlink"): (0.87, 1.11),  # 62
    ("LL", "pcie"): (0.86, 1.18),  # 101
    ("LL128", "pcie"): (0.88, 1.32),  # 82
    ("Simple", "pcie"): (0.83, 1.19),  # 195
    ("p2p-LL", "pcie"): (0.84, 1.19),  # 45
    ("p2p-Simple", "pcie"): (0.78, 1.20),  # 81
    ("one-shot", "pcie"): (0.95, 1.06),  # 30
    # DeepEP's with at least 128 experts and 4 of them a token; errors of the rest are up to threefold.
    ("deepep-dispatch", "nvlink"): (0.79, 1.40),  # 1,978
    ("deepep-combine", "nvlink"): (0.78, 1.26),  # 1,978
    ("deepep-low_latency_dispatch", "nvlink"): (0.82, 1.26),  # 792
    ("deepep-low_latency_combine", "nvlink"): (0.82, 1.11),  # 792
    # Among nodes, DeepEP's own 18 figures are within 6 % of what was fitted to them.  Others' span more: of normal
    # kernels, from 76 GB/s on H20 (DeepEP's #453) and 38 on H200 (#493) where it has 43 GB/s for 16 ranks; of
    # low-latency ones, before these used NVLink within a node, up to 1.47 of its seconds for 16 ranks.
    ("deepep-nodes-dispatch", "nvlink"): (0.6, 1.3),
    ("deepep-nodes-combine", "nvlink"): (0.6, 1.4),
    ("deepep-nodes-dispatch", "network"): (0.9, 1.3),
    ("deepep-nodes-combine", "network"): (0.9, 1.3),
    ("deepep-nodes-low_latency_dispatch", "nvlink"): (0.9, 1.4),
    ("deepep-nodes-low_latency_combine", "nvlink"): (0.9, 1.4),
    ("deepep-nodes-low_latency_dispatch", "network"): (0.9, 1.4),
    ("deepep-nodes-low_latency_combine", "network"): (0.9, 1.4),
}
#: Where they were not: the same quantiles of what NCCL's own tuning model says of those rows, 4,223 over NVLink and 642
#: over PCIe.  Nothing was measured between nodes, so that is an assumption: NCCL's trees, which there are none of here,
#: are some times faster with small messages.
UNFITTED: Mapping[str, tuple[float, float]] = {"nvlink": (0.88, 1.91), "pcie": (0.70, 10.9), "network": (0.2, 2.0)}


#: The most GPUs inside a node among which a transport was measured.
MOST_MEASURED = 8


def interval_factors(protocol: str, links: Set[str], fitted: bool, ranks: int = 2) -> tuple[float, float]:
    """The factors for *protocol* over *links* among so many *ranks*: those of the least certain link.

    Inside one node, more ranks than were measured are at least as uncertain as what was not measured at all.
    """
    known = fitted and ("network" in links or ranks <= MOST_MEASURED)
    factors = [FITTED.get((protocol, link), UNFITTED[link]) if fitted else UNFITTED[link] for link in links]
    factors += [UNFITTED[link] for link in links if not known]
    return min(low for low, _ in factors), max(high for _, high in factors)
