"""A GPU of round numbers, kernels of any shape, and networks of the catalogue's systems."""

from collections.abc import Sequence

from attrs import evolve, frozen

from ksim.compute.kernels import Launch, Work
from ksim.foundation import catalog
from ksim.foundation.config import structure
from ksim.foundation.units import DType
from ksim.network.network import Network
from ksim.scenario.hardware import protocols_of
from ksim.specs.hardware import Gpu, Power, System

#: Four SMs of 1 GFLOP/s each in BF16, and 1 GB/s; each takes 64 GB/s from the L2 cache.
TOY = Gpu(
    name="toy", architecture="toy", sms=4, clock=1e9, memory=1e9, bandwidth=1e9, l2=1e6, nvlink=0, pcie=1e9,
    flops={"bf16": 4e9, "fp32": 1e9}, system="none", source="a test",
    power=Power(idle=10, limit=100, flop={"bf16": 2e-9}, hbm=3e-9, link=5e-9, source="a test"),
)
#: FlashInfer's, which an engine prefers where it is told to, are not among them.
ALL = ("ring", "nvls", "pairwise", "direct", "two_shot", "symmetric")


@frozen
class Shape:
    """A kernel of which everything is given."""

    flops: float = 0.0
    bytes: float = 0.0
    ways: tuple[Launch, ...] = ()
    dtype: DType = DType.BF16
    family: str = "shape"

    @property
    def work(self) -> Work:
        return Work(self.flops, self.bytes, 0.0, self.dtype)

    def launches(self, sms: int) -> Sequence[Launch]:
        return self.ways


def blocks(count: int, flops: float = 1e9, *, bytes: float = 0.0, **launch: float) -> Shape:
    """A kernel with one way to launch it: so many blocks of so many FLOP."""
    return Shape(count * flops, bytes, (Launch("only", count, flops, **launch),))


def system(name: str, nodes: int = 1) -> System:
    return evolve(structure(System, catalog.load("systems", name), name), nodes=nodes)


def network(name: str = "hgx-h200", *algorithms: str, nodes: int = 1) -> Network:
    """The network of a system, with the algorithms given or all of them."""
    chosen = {name: catalog.find("network.collectives", name)() for name in algorithms or ALL}
    wired = system(name, nodes)
    return Network(wired, chosen, protocols_of(wired))
