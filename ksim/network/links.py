"""All links of a fleet, numbered, and the links that bytes pass from one end to another."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import NoReturn

from attrs import define, field, frozen

from ksim.foundation.errors import ConfigError
from ksim.network.routes import Machines, NodeGroup, SystemLinks

__all__ = ["Links", "Machines"]

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
        """What each link is called, such as "gpu7 NIC out"."""
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
        """From (0) or to (1) the storage."""
        if not end.group.links.shared:
            _no_path("storage", end.name, f"give the file of {end.group.system.name!r} a [storage]")
        yield end.group.storage_link(way)
        yield from end.group.node_links(end.node, f"storage {'in' if way == 0 else 'out'}")
        if end.gpu is not None:
            yield from _lanes(end, "in" if way == 0 else "out")

    def _between(self, a: _End, b: _End) -> Iterator[int]:
        """From NIC to NIC; a node's memory uses the NIC that the other end's GPU has, or the first one."""
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
    """Within a node: over NVLink, or over PCIe through the sockets."""
    if a.gpu is None or b.gpu is None:
        return _lanes(b, "in") if a.gpu is None else _lanes(a, "out")
    if a.group.system.interconnect == "nvlink":
        return iter((a.group.gpu_link(a.gpu, "NVLink out"), b.group.gpu_link(b.gpu, "NVLink in")))
    return chain(_lanes(a, "out"), _through_sockets(a, a.group.socket_of(a.gpu), b.group.socket_of(b.gpu)),
                 _lanes(b, "in"))


def _disks(a: _End, b: _End) -> Iterator[int]:
    """From a node's disks to its memory, or back."""
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
    """From a GPU to its NIC (0) or back (1), where its lanes carry that."""
    return _lanes(end, ("out", "in")[way]) if end.group.system.pcie.nics else iter(())


def _by_nic(end: _End, other: _End) -> int:
    """The GPU whose NIC bytes of *end* pass."""
    if end.gpu is not None:
        return end.gpu
    slot = 0 if other.gpu is None else (other.gpu - other.group.gpu) % other.group.size
    return end.group.gpu + (end.node - end.group.node) * end.group.size + slot % end.group.size


def _no_path(source: str, target: str, advice: str) -> NoReturn:
    raise ConfigError("network", f"there is no path from {source} to {target}; {advice}")
