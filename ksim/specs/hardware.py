"""Hardware: GPUs, the links between them, and the systems they make up."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen, validators

from ksim.foundation.units import DType, quantity


def amount(**kwargs: Any) -> Any:
    """Declare a non-negative quantity in SI units that a data file may write with its unit."""
    return field(converter=quantity, validator=validators.ge(0), **kwargs)


def positive(**kwargs: Any) -> Any:
    """Declare a quantity above zero in SI units that a data file may write with its unit."""
    return field(converter=quantity, validator=validators.gt(0), **kwargs)


def _by_dtype(table: Mapping[str | DType, float | str]) -> dict[DType, float]:
    return {key if isinstance(key, DType) else DType.named(key): quantity(value) for key, value in table.items()}


@frozen
class Power:
    """Watts drawn all the time, and joules per action on top.

    `idle` is the power of a GPU that waits, clocks up and memory powered;
    `flop` is per FLOP of the number format, `hbm` and `link` are per byte.
    """

    idle: float = amount()
    limit: float = positive()
    flop: Mapping[DType, float] = field(converter=_by_dtype)
    hbm: float = amount()
    link: float = amount()
    source: str


@frozen
class Gpu:
    """One accelerator as its data sheet describes it: SI units, dense peaks, without sparsity."""

    name: str
    architecture: str
    sms: int = field(validator=validators.gt(0))
    clock: float = positive()
    memory: float = positive()
    bandwidth: float = positive()
    l2: float = positive()
    flops: Mapping[DType, float] = field(converter=_by_dtype, validator=validators.min_len(1))
    nvlink: float = amount()
    pcie: float = positive()
    power: Power
    system: str
    source: str


@frozen
class Link:
    """One direction of a connection: what it carries at best, and the share of it that NCCL reaches."""

    bandwidth: float = positive()
    efficiency: float = field(default=1.0, validator=(validators.gt(0), validators.le(1)))
    source: str = ""


@frozen
class System:
    """`nodes` equal nodes of `gpus_per_node` GPUs.

    Inside a node, GPUs meet at an NVSwitch (`inside.kind = "nvlink"`) or at the PCIe root of their socket
    (`"pcie"`, with `sockets` joined by `between_sockets`).  Each GPU has its share of a NIC to the other nodes.
    A rack-scale NVLink domain, as of an NVL72, is one node here.
    """

    name: str
    gpu: str
    gpus_per_node: int = field(validator=validators.gt(0))
    interconnect: str = field(validator=validators.in_(("nvlink", "pcie")))
    inside: Link
    network: Link | None = None
    between_sockets: Link | None = None
    sockets: int = field(default=1, validator=validators.gt(0))
    nodes: int = field(default=1, validator=validators.gt(0))
    source: str = ""

    def __attrs_post_init__(self) -> None:
        if self.nodes > 1 and self.network is None:
            raise ValueError(f"system {self.name!r} has {self.nodes} nodes but no [network] between them")
        if self.sockets > 1 and self.between_sockets is None:
            raise ValueError(f"system {self.name!r} has {self.sockets} sockets but no [between_sockets] link")
        if self.gpus_per_node % self.sockets:
            raise ValueError(f"{self.gpus_per_node} GPUs do not divide over {self.sockets} sockets")

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node
