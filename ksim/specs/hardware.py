"""Hardware: GPUs, the links between them, the systems they make up, and what they draw.

`Power` is what a GPU draws when idle and for each action, and how its clock follows a power limit.  `Footprint` has the
power of what surrounds the GPUs, the emissions of a kWh, and the costs.  `RankSettings` say how GPUs that are built
alike differ in life.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from attrs import evolve, field, frozen
from attrs.validators import deep_mapping, ge, gt, in_, instance_of, le, min_len, optional

from ksim.foundation.config import Choice
from ksim.foundation.units import (
    DType,
    Hertz,
    OfEach,
    Seconds,
    Watts,
    by_dtype,
    optional_quantity,
    quantities,
    quantity,
)


def _by_clock(table: Mapping[str | float, float]) -> dict[float, float]:
    if not isinstance(table, Mapping):
        raise ValueError(f"expected a table of voltages by clock, not {table!r}")
    return _ascending(table)


def _ascending(table: Mapping[str | float, float]) -> dict[float, float]:
    return dict(sorted((quantity(place), float(value)) for place, value in table.items()))


def _by_weights(table: Mapping[str, Any]) -> dict[str, float | dict[float, float]]:
    if not isinstance(table, Mapping):
        raise ValueError(f"expected a table of shares by family of kernels, not {table!r}")
    return {family: _ascending(share) if isinstance(share, Mapping) else float(share)
            for family, share in table.items()}


@frozen
class Clocks:
    """How a GPU's SMs behave at lower clocks, and for how long they may exceed the power limit.

    `voltage` maps SM clocks (Hz) to the voltage relative to that at the boost clock; between them it is linear.  The
    lowest clock in it is the lowest that can be set.  A compute-bound kernel takes 1 + `share` (boost clock / clock -
    1) times as long as at the boost clock.  Nothing was measured below the clock `known`, or at any lower clock if it
    is None.  A GPU may exceed its limit as long as it has `credit` (J), and earns credit below the limit.  `measured`
    is about families of kernels that were measured at a lower clock: which share of the measured time compute-bound
    kernels take at the boost clock.  For products it may map bytes of weights to shares, linear between them.
    """

    voltage: Mapping[float, float] = field(
        converter=_by_clock, validator=(min_len(2), deep_mapping(gt(0), (gt(0), le(1)))))
    share: float = field(validator=(gt(0), le(1)))
    source: str
    known: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    credit: float = field(default=0.0, converter=quantity, validator=ge(0))
    measured: Mapping[str, float | Mapping[float, float]] = field(factory=dict, converter=_by_weights)

    @property
    def least(self) -> float:
        """The lowest clock, in Hz."""
        return min(self.voltage)

    @property
    def boost(self) -> float:
        """The highest clock, in Hz."""
        return max(self.voltage)

    def cool(self, family: str, weights: Any = 0.0) -> Any:
        """The share of their measured time that compute-bound kernels of *family*, with so many bytes of *weights*,
        take at the boost clock; a column where *weights* are a column."""
        share = self.measured.get(family, 1.0)
        if isinstance(share, float):
            return share
        from numpy import interp  # which the command line and completion do without

        return interp(weights, list(share), list(share.values()))

    def slowed(self, clock: float) -> float:
        """The factor by which compute-bound kernels take longer at *clock* (Hz) than at the boost clock."""
        return 1.0 + self.share * (self.boost / clock - 1.0)

    def drawn(self, clock: float) -> float:
        """SM power at *clock* (Hz), relative to that at the boost clock."""
        return self.saved(clock) * clock / self.boost

    def saved(self, clock: float) -> float:
        """SM energy per action at *clock* (Hz), relative to that at the boost clock: the square of the voltage."""
        points = list(self.voltage.items())
        for (low, volts), (high, more) in pairwise(points):
            if clock <= high:
                return (volts + (more - volts) * (clock - low) / (high - low)) ** 2
        return points[-1][1] ** 2


@frozen
class PowerSettings:
    """The power settings that all GPUs of a scenario keep to."""

    cap: Watts | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Most power that a GPU may draw. Unit: W. Default: the limit of the board. Example: "500 W"."""
    clock: Hertz | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Highest SM clock. Unit: Hz. Default: the boost clock. Example: "1500 MHz"."""
    governor: Choice | None = None
    """The governor, which chooses caps and clocks step by step, below `cap` and `clock`. Default: none. Names:
    engine.governors. Example: {name = "slack", share = 0.05}."""
    data: float = field(default=1.0, validator=(gt(0), le(2)))
    """Energy of a FLOP with the numbers that the model multiplies, over that with random normal ones, with which it
    was measured; fewer bits of uniform, sparse or zero numbers change. Unit: share. Example: 0.9."""

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.cap, self.clock, self.governor))


#: The source of a GPU's power: measured on it, kernel by kernel; fitted to the watts of boards in whole runs;
#: extrapolated from GPUs that were, and from its kind of memory; estimated from its data sheet; or stated in its file.
BASES = ("measured", "fitted", "extrapolated", "estimated", "stated")


@frozen
class Power:
    """Watts that a GPU always draws, and joules per action on top, at the boost clock.

    `idle` is the power of a waiting GPU with clocks up and memory powered; `sleep` is that of a GPU that has been
    without work for long, with clocks down.  `flop` has joules per FLOP by number format, with tiles filled up to
    their full size.  `hbm`, `l2` and `link` are joules per byte: read or written in memory, moved through the L2
    cache, sent to a peer.  A byte written to memory takes `write` more, and a byte through a NIC takes `network`.
    SMs draw `busy` watts while they work, which is all of a kernel's time except the `start` of its launch; in grouped
    GEMMs they draw as many as `experts` has for the weights' number format, where it has that.  `reach` is the largest
    relative error of the joules of 9 in 10 kernels or runs outside the fit.  Without `clocks`, the clock is the one at
    which kernels were measured.  `basis` is one of `BASES`.
    """

    idle: float = field(converter=quantity, validator=ge(0))
    limit: float = field(converter=quantity, validator=gt(0))
    flop: Mapping[DType, float] = field(converter=by_dtype, validator=deep_mapping(instance_of(DType), ge(0)))
    hbm: float = field(converter=quantity, validator=ge(0))
    link: float = field(converter=quantity, validator=ge(0))
    source: str
    write: float = field(default=0.0, converter=quantity, validator=ge(0))
    l2: float = field(default=0.0, converter=quantity, validator=ge(0))
    network: float = field(default=0.0, converter=quantity, validator=ge(0))
    busy: float = field(default=0.0, converter=quantity, validator=ge(0))
    start: float = field(default=0.0, converter=quantity, validator=ge(0))
    experts: Mapping[DType, float] = field(
        factory=dict, converter=by_dtype, validator=deep_mapping(instance_of(DType), ge(0)))
    sleep: float | None = field(default=None, converter=optional_quantity, validator=optional(ge(0)))
    reach: float = field(default=0.0, validator=ge(0))
    clocks: Clocks | None = None
    basis: str = field(default="stated", validator=in_(BASES))

    def with_data(self, share: float) -> "Power":
        """The same, where a FLOP takes a *share* of the joules, as the numbers in it change fewer bits."""
        return self if share == 1.0 else evolve(self, flop={dtype: share * cost for dtype, cost in self.flop.items()})

    def of_sms(self, share: float) -> "Power":
        """The same, where SMs draw a *share* of the watts, as fewer of them do."""
        return evolve(self, busy=share * self.busy,
                      experts={dtype: share * watts for dtype, watts in self.experts.items()})


#: Architectures whose kernels are known.
ARCHITECTURES = ("turing", "ampere", "ada", "hopper", "blackwell", "blackwell-consumer")
#: The most nodes, and the most GPUs in a node: every replica has an engine of its own.
MOST = 10_000


@frozen
class SlowGpu:
    """One GPU that differs from the others of its kind, from `start` to `end`."""

    gpu: int = field(validator=(ge(0), le(MOST * 8)))
    """Its number in the fleet, whose GPUs are numbered node by node from 0 on. Unit: none. Example: 3."""
    speed: float = field(default=1.0, validator=gt(0))
    """The speed of all of its kernels, over that of the others. Unit: share."""
    clock: Hertz | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Highest SM clock that it reaches. Unit: Hz. Default: that of the others. Example: "1200 MHz"."""
    watts: Watts = field(default=0.0, converter=quantity)
    """What it draws beyond the others, as a hotter one leaks more. Unit: W."""
    delay: Seconds = field(default=0.0, converter=quantity, validator=ge(0))
    """Seconds by which its host launches each step later, as on a busy core. Unit: s."""
    link: float = field(default=1.0, validator=gt(0))
    """The bandwidth of its links, over that of the others'. Unit: share."""
    start: Seconds = field(default=0.0, converter=quantity, validator=ge(0))
    """From when on it differs. Unit: s."""
    end: Seconds | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Until when it differs. Unit: s. Default: for good. Example: "60 s"."""

    def __attrs_post_init__(self) -> None:
        if self.until <= self.start:
            raise ValueError(f"gpu {self.gpu} is slow until {self.until:g} s, and only from {self.start:g} s on; set"
                             " start below end")

    @property
    def until(self) -> float:
        """When it ends to differ; inf for never."""
        return inf if self.end is None else self.end

    @property
    def always(self) -> bool:
        """Whether it differs for as long as the run lasts."""
        return not self.start and self.end is None


@frozen
class RankSettings:
    """How GPUs differ that are built alike; with `detail = "rank"`."""

    slow: tuple[SlowGpu, ...] = ()
    """GPUs that differ from the others. Default: none. Example: [{gpu = 3, speed = 0.9}]."""
    speed_spread: float = field(default=0.0, validator=(ge(0), le(0.5)))
    """Standard deviation of the GPUs' speeds, drawn once for each; their mean is 1. Unit: share."""
    power_spread: float = field(default=0.0, validator=(ge(0), le(0.5)))
    """Standard deviation of what GPUs always draw, drawn once for each, as chips leak more or less. Unit: share."""
    launch_jitter: Seconds = field(default=0.0, converter=quantity, validator=ge(0))
    """Mean of a random delay with which each GPU's host launches each step, exponentially distributed. Unit: s."""
    experts: str = field(default="drawn", validator=in_(("drawn", "even")))
    """Whether the rows of each expert are drawn layer by layer and step by step, or all ranks have the average."""

    processes: tuple[Choice, ...] = ()
    """Processes of your own, which listen to the run and interfere: generators that are given the environment, the
    fleet and the log (docs/plugins.md). Default: none. Example: ["interfere:throttle"]."""

    @property
    def differ(self) -> bool:
        """Whether GPUs differ in anything but the rows of their experts."""
        return bool(self.slow or self.speed_spread or self.power_spread or self.launch_jitter or self.processes)


@frozen
class Gpu:
    """One GPU as its data sheet describes it: SI units, dense peaks without sparsity.

    `memory` is what CUDA can allocate, which is less than the nominal size; `driver_memory`, if known, is what the
    driver counts.  `nvlink` (0 without NVLink) and `pcie`
    count one direction.  `system` names the default system.  A GPU without one is alone or, if it has no NVLink, in a
    node of eight over PCIe.  `channel` is the most that one SM sends in a second, where a collective runs on few SMs.
    `profile` is the `name` of the GPU whose measured kernels stand for its own: it has the same SMs, clock and memory.
    """

    name: str
    architecture: str
    sms: int = field(validator=gt(0))
    clock: float = field(converter=quantity, validator=gt(0))
    memory: float = field(converter=quantity, validator=gt(0))
    bandwidth: float = field(converter=quantity, validator=gt(0))
    l2: float = field(converter=quantity, validator=gt(0))
    flops: Mapping[DType, float] = field(
        converter=by_dtype, validator=(min_len(1), deep_mapping(instance_of(DType), gt(0))))
    pcie: float = field(converter=quantity, validator=gt(0))
    power: Power
    nvlink: float = field(default=0.0, converter=quantity, validator=ge(0))
    system: str = ""
    source: str = ""
    channel: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    profile: str = ""
    driver_memory: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))


@frozen
class Link:
    """One direction of a connection: its bandwidth, and the share of it that NCCL reaches."""

    bandwidth: float = field(converter=quantity, validator=gt(0))
    efficiency: float = field(default=1.0, validator=(gt(0), le(1)))
    source: str = ""


#: What copies by DMA reach over the H100's PCIe 5.0 x16, whose lanes carry 64 GB/s one way: about 50 GB/s one way, and
#: 83.4 GB/s both ways together (vLLM 0.12 with blocks of 2 MB on a Sapphire Rapids host; vLLM's blog on offloading of
#: 2026-01-08, second-hand).
PCIE_SHARE, PCIE_BOTH_WAYS = 50 / 64, 83.4 / 50


@frozen
class Pcie:
    """The lanes of one GPU: one direction's `bandwidth`, and the share of it that copies reach.

    Without a bandwidth it is that of the GPU's `pcie`.  Copies both ways reach `joint` together, or without it
    `PCIE_BOTH_WAYS` times what they reach one way.  `nics` says whether the lanes also carry what the GPU's NIC sends.
    """

    bandwidth: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    efficiency: float = field(default=PCIE_SHARE, validator=(gt(0), le(1)))
    joint: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    nics: bool = True
    source: str = ""


@frozen
class Leaf:
    """A leaf switch joins the NICs of `nodes` nodes.

    Its links to the spine have the bandwidth of these NICs, divided by `oversubscription`.
    """

    nodes: int = field(validator=gt(0))
    oversubscription: float = field(default=1.0, validator=ge(1))
    source: str = ""


@frozen
class Storage:
    """`servers` that all nodes load from: the `bandwidth` of each, one way, and that of a `node`'s link to them.

    All servers together hold `capacity` bytes.
    """

    bandwidth: float = field(converter=quantity, validator=gt(0))
    servers: int = field(default=1, validator=gt(0))
    node: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    capacity: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    source: str = ""


@frozen
class Disk:
    """The NVMe drives of one node: the bytes/s that all of them together `read` and `write`, and what they hold."""

    read: float = field(converter=quantity, validator=gt(0))
    write: float = field(converter=quantity, validator=gt(0))
    capacity: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    source: str = ""


def _by_ranks(table: Mapping[str | int, Sequence[float | str]]) -> dict[int, tuple[float, float]]:
    return {int(ranks): (quantity(least), quantity(limit)) for ranks, (least, limit) in table.items()}


@frozen
class Timing:
    """The time of a protocol over one kind of link.

    A collective takes `start` seconds, `hop` for each round, and `peer` for each further GPU that a GPU sends to in a
    round.  It reaches the `share` of the links' bandwidth.  That share is multiplied by `pair_reduce` (all-reduce) or
    `pair` (others) among two GPUs, and by `eight` among eight.  `sizes` has, for each number of ranks that uses the
    protocol, the smallest message and the first one that is too large; it is empty if there are no limits.
    """

    start: float = field(converter=quantity, validator=ge(0))
    share: float = field(validator=gt(0))
    hop: float = field(default=0.0, converter=quantity, validator=ge(0))
    peer: float = field(default=0.0, converter=quantity, validator=ge(0))
    pair: float = field(default=1.0, validator=gt(0))
    pair_reduce: float = field(default=1.0, validator=gt(0))
    eight: float = field(default=1.0, validator=gt(0))
    sizes: Mapping[int, tuple[float, float]] = field(factory=dict, converter=_by_ranks)

    def reached(self, kind: str, ranks: int) -> float:
        """The share of the links' bandwidth that *ranks* GPUs reach in a collective of this *kind*."""
        if ranks == 2:
            return self.share * (self.pair_reduce if kind == "all_reduce" else self.pair)
        return self.share * (self.eight if ranks == 8 else 1.0)

    def window(self, ranks: int) -> tuple[float, float]:
        """The smallest message in bytes for which *ranks* GPUs use the protocol, and the first that is too large."""
        return self.sizes.get(ranks, (0.0, 0.0)) if self.sizes else (0.0, inf)


@frozen
class Transport:
    """One library's `protocols` by name, as measured over the links inside a node, and `network` over those between."""

    name: str
    source: str
    protocols: Mapping[str, Timing]
    network: Mapping[str, Timing] = field(factory=dict)


@frozen
class System:
    """`nodes` equal nodes of `gpus_per_node` GPUs.

    Inside a node, GPUs are connected by an NVSwitch (`interconnect = "nvlink"`) or by the PCIe root of their socket
    (`"pcie"`, with `sockets` joined by `between_sockets`).  Each GPU has its share of a NIC to the other nodes.  A
    rack-scale NVLink domain such as an NVL72 is one node.  Without `leaf` switches, the network between nodes has room
    for what all NICs send.  `memory` is what the CPUs of a node have, in bytes; None if that is not known.
    """

    name: str
    gpu: str
    gpus_per_node: int = field(validator=(gt(0), le(MOST)))
    interconnect: str = field(validator=in_(("nvlink", "pcie")))
    inside: Link
    network: Link | None = None
    between_sockets: Link | None = None
    sockets: int = field(default=1, validator=gt(0))
    nodes: int = field(default=1, validator=(gt(0), le(MOST)))
    source: str = ""
    #: Catalogue names of the transports measured on it.
    transports: tuple[str, ...] = ()
    pcie: Pcie = field(factory=Pcie)
    leaf: Leaf | None = None
    storage: Storage | None = None
    memory: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    memory_source: str = ""
    disk: Disk | None = None

    def __attrs_post_init__(self) -> None:
        if self.nodes > 1 and self.network is None:
            raise ValueError(f"system {self.name!r} has {self.nodes} nodes but no [network] between them")
        if self.sockets > 1 and self.between_sockets is None:
            raise ValueError(f"system {self.name!r} has {self.sockets} sockets but no [between_sockets] link")
        if self.leaf is not None and self.network is None:
            raise ValueError(f"system {self.name!r} has [leaf] switches but no [network] that they join")
        if self.gpus_per_node % self.sockets:
            raise ValueError(f"{self.gpus_per_node} GPUs do not divide over {self.sockets} sockets")

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


_BOUNDS: list[Any] = [ge(0), le(1e6)]


def _stated() -> float | None:
    rate: float | None = field(default=None, converter=optional_quantity, validator=optional(_BOUNDS))
    return rate


@frozen
class ElectricGrid:
    """The electricity of a region: gCO2e per kWh, averaged over a year."""

    name: str
    intensity: float = field(converter=quantity, validator=ge(0))
    year: int
    source: str


@frozen
class Footprint:
    """How a scenario turns energy into emissions and costs; what it leaves out is not counted."""

    grid: str | None = None
    """The electricity grid, for its carbon intensity. Default: no carbon is counted. Names: grids. Example: "de"."""
    carbon_intensity: float | None = _stated()
    """Carbon intensity, in place of a `grid`. Unit: gCO2e/kWh. Default: that of `grid`. Example: 350."""
    pue: float = field(default=1.0, converter=quantity, validator=(ge(1), le(100)))
    """Power usage effectiveness: the energy of the data centre over that of its machines. Unit: ratio."""
    host_watts: Watts = field(default=0.0, converter=quantity, validator=_BOUNDS)
    """Power of a node beside its GPUs and their NICs. Unit: W."""
    nic_watts: Watts = field(default=0.0, converter=quantity, validator=_BOUNDS)
    """Power of the NIC of a GPU. Unit: W."""
    price_per_kwh: float | None = _stated()
    """Price of electricity. Unit: $/kWh. Default: not counted. Example: 0.12."""
    price_per_gpu_hour: float | Mapping[str, float] | None = field(
        default=None, converter=quantities, validator=optional(OfEach(tuple(_BOUNDS))))
    """Price of a GPU, or a table of prices by GPU, such as {h100 = 2.5, h200 = 3.5}. Unit: $/h. Default: not counted.
    Example: 3.5."""
    sleep_after: Seconds | None = field(default=None, converter=optional_quantity, validator=optional(ge(0)))
    """Time without work after which a GPU sleeps. Unit: s. Default: GPUs stay awake. Example: "10 s"."""

    def __attrs_post_init__(self) -> None:
        if self.grid is not None and self.carbon_intensity is not None:
            raise ValueError("name a grid or state a carbon_intensity, not both")
