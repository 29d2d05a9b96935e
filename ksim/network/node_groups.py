"""The nodes of one system within a fleet, and the numbers of their links."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat

from attrs import frozen

from ksim.network.system_links import LinkSpec, Machines, SystemLinks
from ksim.specs.hardware import System


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
        """What *of* says of each link, in the order of their numbers."""
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
