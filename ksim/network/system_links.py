"""Which links one node of a system has, and which its nodes share, with their bandwidths."""

from collections.abc import Iterator, Mapping
from functools import cached_property

from attrs import define, frozen

from ksim.specs.hardware import PCIE_BOTH_WAYS, Gpu, Link, System

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
        """From the disks of a node, and to them."""
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
        """How many leaf switches there are."""
        system = self.machines.system
        return -(-system.nodes // system.leaf.nodes) if system.leaf else 0

    @cached_property
    def places(self) -> Mapping[str, Mapping[str, int]]:
        """The places of links by name, among those of a GPU and of a node."""
        return {part: {spec.name: place for place, spec in enumerate(specs)}
                for part, specs in (("gpu", self.gpu), ("node", self.node))}


def _both(name: str, kind: str, link: Link | None) -> Iterator[LinkSpec]:
    """*link* out and in; nothing without one."""
    if link is not None:
        for way in WAYS:
            yield LinkSpec(f"{name} {way}".strip(), kind, link.bandwidth * link.efficiency, link.bandwidth)
