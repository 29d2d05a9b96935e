"""All links of a fleet, numbered, and the links that bytes pass from one end to another."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import NoReturn

from attrs import define, field, frozen

from ksim.foundation.errors import ConfigError
from ksim.network.sites import Site
from ksim.network.wiring import Machines, Wiring

__all__ = ["Links", "Machines"]

Path = tuple[int, ...]


@frozen
class _End:
    """An end of a path: a GPU, or a node's memory (`gpu` is None)."""

    name: str
    site: Site
    node: int
    gpu: int | None = None


@define(slots=False)
class Links:
    """Every link of a fleet.  Each direction is a link of its own, and so is what PCIe carries both ways together.

    Links are numbered from 0: those of each GPU, of each node, of each leaf switch and of the storage, system by
    system.  GPUs are numbered through all machines, node by node.
    """

    machines: Sequence[Machines]
    _sites: Sequence[Site]
    _paths: dict[tuple[str, str], Path] = field(factory=dict)
    _ends: dict[str, _End] = field(factory=dict)

    @classmethod
    def of(cls, machines: Sequence[Machines]) -> "Links":
        """Number the links of *machines*."""
        sites: list[Site] = []
        for part in machines:
            sites.append(sites[-1].after(part) if sites else Site(Wiring(part), 0, 0, 0, 0, 0))
        return cls(tuple(machines), sites)

    @cached_property
    def names(self) -> Sequence[str]:
        """What each link is called, such as "gpu7 NIC out"."""
        return tuple(chain.from_iterable(site.names() for site in self._sites))

    @cached_property
    def kinds(self) -> Sequence[str]:
        """The kind of each link: one of `wiring.KINDS`."""
        return tuple(str(kind) for site in self._sites for kind in site.columns(lambda wire: wire.kind))

    @cached_property
    def capacities(self) -> Sequence[float]:
        """The bytes/s that flows can use of each link."""
        return tuple(float(rate) for site in self._sites for rate in site.columns(lambda wire: wire.capacity))

    @cached_property
    def peaks(self) -> Sequence[float]:
        """The line rate of each link in bytes/s."""
        return tuple(float(rate) for site in self._sites for rate in site.columns(lambda wire: wire.peak))

    def line_rate(self, path: Sequence[int]) -> float:
        """The least line rate on *path* in bytes/s; inf for one without links."""
        return min((self.peaks[link] for link in path), default=float("inf"))

    def path(self, source: str, target: str) -> Path:
        """The links that bytes pass from *source* to *target*, each a "gpu7", a node's memory "host0" or "storage".

        It is empty from an end to itself.  Raises ConfigError where there is no path.
        """
        if (source, target) not in self._paths:
            self._paths[source, target] = tuple(self._way(source, target))
        return self._paths[source, target]

    def wires(self, source: int, target: int) -> Path:
        """The links between two GPUs of different nodes from NIC to NIC, without the PCIe lanes before and behind."""
        return tuple(self._between(self._end(f"gpu{source}"), self._end(f"gpu{target}")))

    def nic(self, gpu: int, way: str) -> int:
        """The link "out" of or "in" through the NIC of *gpu*."""
        return self._end(f"gpu{gpu}").site.gpu_link(gpu, f"NIC {way}")

    def _way(self, source: str, target: str) -> Iterator[int]:
        if source == target:
            return iter(())
        if "storage" in (source, target):
            way, end = (0, target) if source == "storage" else (1, source)
            return self._stored(self._end(end), way)
        a, b = self._end(source), self._end(target)
        if a.node == b.node:
            return _inside(a, b)
        return chain(_to_nic(a, 0), self._between(a, b), _to_nic(b, 1))

    def _stored(self, end: _End, way: int) -> Iterator[int]:
        """From (0) or to (1) the storage."""
        if not end.site.wiring.shared:
            _no_path("storage", end.name, f"give the file of {end.site.system.name!r} a [storage]")
        yield end.site.storage_link(way)
        yield from end.site.node_links(end.node, f"storage {'in' if way == 0 else 'out'}")
        if end.gpu is not None:
            yield from _lanes(end, "in" if way == 0 else "out")

    def _between(self, a: _End, b: _End) -> Iterator[int]:
        """From NIC to NIC; a node's memory uses the NIC that the other end's GPU has, or the first one."""
        for end in (a, b):
            if end.site.system.network is None:
                _no_path(a.name, b.name, f"give the file of {end.site.system.name!r} a [network], or keep in one node"
                                         " what exchanges KV")
        yield a.site.gpu_link(_by_nic(a, b), "NIC out")
        leaves = a.site.leaf_of(a.node), b.site.leaf_of(b.node)
        if leaves[0] is None or leaves[0] != leaves[1]:
            yield from a.site.leaf_link(leaves[0], 0)
            yield from b.site.leaf_link(leaves[1], 1)
        yield b.site.gpu_link(_by_nic(b, a), "NIC in")

    def _end(self, name: str) -> _End:
        if name not in self._ends:
            self._ends[name] = self._find(name)
        return self._ends[name]

    def _find(self, name: str) -> _End:
        kind, digits = name.rstrip("0123456789"), name[len(name.rstrip("0123456789")):]
        if kind in ("gpu", "host") and digits:
            number = int(digits)
            firsts = [site.gpu if kind == "gpu" else site.node for site in self._sites]
            site = self._sites[max(bisect_right(firsts, number) - 1, 0)]
            node = site.node + (number - site.gpu) // site.size if kind == "gpu" else number
            if node < site.node + site.nodes:
                return _End(name, site, node, number if kind == "gpu" else None)
        last = self._sites[-1].after(self._sites[-1].wiring.machines)
        raise ConfigError("network", f"there is no {name!r}: the fleet has gpu0 to gpu{last.gpu - 1}, host0 to"
                                     f" host{last.node - 1}, and storage; more nodes have more")


def _inside(a: _End, b: _End) -> Iterator[int]:
    """Within a node: over NVLink, or over PCIe through the sockets."""
    if a.gpu is None or b.gpu is None:
        return _lanes(b, "in") if a.gpu is None else _lanes(a, "out")
    if a.site.system.interconnect == "nvlink":
        return iter((a.site.gpu_link(a.gpu, "NVLink out"), b.site.gpu_link(b.gpu, "NVLink in")))
    return chain(_lanes(a, "out"), _through_sockets(a, a.site.socket_of(a.gpu), b.site.socket_of(b.gpu)),
                 _lanes(b, "in"))


def _through_sockets(end: _End, first: int, last: int) -> Iterator[int]:
    way = "out" if first < last else "in"
    return end.site.node_links(end.node, *(f"socket{socket} {way}"
                                           for socket in range(min(first, last), max(first, last))))


def _lanes(end: _End, way: str) -> Iterator[int]:
    if end.gpu is not None:
        yield end.site.gpu_link(end.gpu, f"PCIe {way}")
        yield end.site.gpu_link(end.gpu, "PCIe both ways")


def _to_nic(end: _End, way: int) -> Iterator[int]:
    """From a GPU to its NIC (0) or back (1), where its lanes carry that."""
    return _lanes(end, ("out", "in")[way]) if end.site.system.pcie.nics else iter(())


def _by_nic(end: _End, other: _End) -> int:
    """The GPU whose NIC bytes of *end* pass."""
    if end.gpu is not None:
        return end.gpu
    slot = 0 if other.gpu is None else (other.gpu - other.site.gpu) % other.site.size
    return end.site.gpu + (end.node - end.site.node) * end.site.size + slot % end.site.size


def _no_path(source: str, target: str, advice: str) -> NoReturn:
    raise ConfigError("network", f"there is no path from {source} to {target}; {advice}")
