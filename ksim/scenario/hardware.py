"""Hardware by name: GPUs, systems, networks and hosts, with the engine releases and electricity grids beside them.

Each function reads a data file: one of the catalogue's by its name, or a user's by its path.  It raises UnknownName for
a name that the catalogue lacks, DataError for a file that cannot be read, and ConfigError for a value that cannot be.
`oracle_choice` is the latency oracle of a GPU, where a scenario names none.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import log
from pathlib import Path
from typing import Any

from attrs import evolve

from ksim.calibration.datasheet import check_quantities, gpu_named, merge
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice, structure
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import HOUR, KWH
from ksim.network.links import Protocol, measured
from ksim.network.network import Network
from ksim.network.routes import Machines, SystemLinks
from ksim.oracles.efficiency.profiled import shipped
from ksim.results.numbers import CostRates
from ksim.specs.hardware import ElectricGrid, Footprint, Gpu, Link, System, Transport
from ksim.specs.host import Host
from ksim.specs.settings import EngineSettings, EngineVersion

__all__ = ["oracle_choice", "gpu_of", "system_of", "beside", "links_of", "network_of", "protocols_of", "engine_of",
           "host_of", "with_base", "grid_of", "rates_of", "fused"]


def gpu_of(gpu: str | Choice) -> Gpu:
    """Read a GPU, a choice of one with other figures; what its file leaves out of `[power]` is estimated."""
    return gpu_named(gpu)


#: The share of PCIe's bandwidth that is reached between GPUs whose file names no system.
REACHED = 0.63


def system_of(gpu: str | Choice | None, system: str | None = None, nodes: int | None = None) -> System:
    """Read the *system* of that name, or the usual system of *gpu*; one of the two may be None.

    The system gets *gpu* and *nodes* where they are given, and links of the bandwidth that a choice of GPU states.  A
    GPU whose file names no system is in a node of eight like the catalogue's most similar.  Raises ConfigError for a
    GPU that the system cannot have: another of the catalogue than its own, or one with slower links.
    """
    if not gpu and not system:
        raise ConfigError("gpu, system", "name one of them (see `ksim list gpus`, `ksim list systems`)")
    own = gpu_of(gpu) if gpu else None
    called = catalog.spelled("gpus", gpu.name if isinstance(gpu, Choice) else gpu) if gpu else ""
    name = system or (beside(own.system, called) if own else "")
    if not name and own:
        return _unnamed(own, called, nodes)
    table = catalog.load("systems", name)
    if "gpu" in table:
        table["gpu"] = beside(table["gpu"], name)
    if nodes is not None:
        table["nodes"] = nodes
    if own is not None:
        if not (catalog.is_file(called) or called == table.get("gpu") or own.system == name):
            raise ConfigError("gpu", f"is {called!r}, but system {name!r} has {table.get('gpu')!r}; name one of them")
        table["gpu"] = called
    check_quantities(_links(table), f"system {name}")
    read = structure(System, table, f"system {name}")
    kind = read.interconnect
    if own is not None and isinstance(gpu, Choice) and kind in gpu.options and (one_way := getattr(own, kind)):
        read = evolve(read, inside=evolve(read.inside, bandwidth=one_way))
    _check_links(read, own or gpu_of(read.gpu), name)
    return read


def beside(name: Any, owner: str) -> Any:
    """*name*, which the file *owner* says; a relative path is relative to that file, if there is such a file."""
    if isinstance(name, str) and catalog.is_file(name) and catalog.is_file(owner):
        beside = Path(owner).parent / name
        return str(beside) if beside.exists() else name
    return name


def _unnamed(own: Gpu, gpu: str, nodes: int | None) -> System:
    """A system for a GPU whose file names none: eight in a node, like the most similar GPU's of the catalogue."""
    if nodes is not None and nodes > 1:
        raise ConfigError("nodes", f"{nodes} nodes of {own.name} need a system that says how they are connected; name"
                                   " one (docs/plugins.md)")
    like, over = _alike(own), "NVLink" if own.nvlink else "PCIe"
    link = like.inside.efficiency if own.nvlink else REACHED
    return evolve(like, name=f"8 x {own.name} over {over}", gpu=gpu, network=None, source="assumed",
                  transports=like.transports if own.nvlink else (),
                  inside=Link(own.nvlink or own.pcie, link, f"the GPU's own; the share is that of {like.name}"))


def _alike(own: Gpu) -> System:
    """The catalogue's system with eight GPUs over the links that *own* has: of its architecture, else the nearest."""
    kind = "nvlink" if own.nvlink else "pcie"
    systems = (catalog.value(System, "systems", name) for name in catalog.entries("systems"))
    eights = [(system, gpu_of(system.gpu)) for system in systems
              if (system.gpus_per_node, system.interconnect) == (8, kind)]
    return min(eights, key=lambda pair: (pair[1].architecture != own.architecture,
                                         abs(log(pair[0].inside.bandwidth / (own.nvlink or own.pcie)))))[0]


_BANDWIDTHS = {"bandwidth", "joint", "node", "read", "write"}


def _links(table: Mapping[str, Any]) -> Iterator[tuple[str, Any, tuple[str, float, float]]]:
    """The bandwidth of each link of a system: its key, its value, and its unit and range."""
    for key in ("inside", "network", "between_sockets", "pcie", "storage", "disk"):
        if isinstance(link := table.get(key), Mapping):
            for name in sorted(_BANDWIDTHS & link.keys()):
                yield f"{key}.{name}", link[name], ("B/s", 1e8, 1e14)


def _check_links(system: System, gpu: Gpu, name: str) -> None:
    """Raise ConfigError where the links of *gpu* are slower than those of *system*, or no PCIe lanes are so."""
    one_way = (gpu.pcie if system.pcie.bandwidth is None else system.pcie.bandwidth) * system.pcie.efficiency
    if not one_way <= (joint := system.pcie.joint or one_way) <= 2 * one_way:
        raise ConfigError("system", f"{name!r} reaches {one_way / 1e9:.4g} GB/s one way over PCIe; both ways together"
                                    f" reach between that and twice that, not {joint / 1e9:.4g}; correct pcie.joint")
    has = gpu.nvlink if system.interconnect == "nvlink" else gpu.pcie
    if has < system.inside.bandwidth * (1 - 1e-9):
        raise ConfigError("system", f"{name!r} joins its GPUs over {system.interconnect} of"
                                    f" {system.inside.bandwidth / 1e9:g} GB/s, and {gpu.name} has {has / 1e9:g} GB/s of"
                                    " it; name a system of that GPU, or none")


def links_of(system: System) -> SystemLinks:
    """The links that flows pass in *system*."""
    return SystemLinks(Machines(system, gpu_of(system.gpu)))


def network_of(system: System, collectives: Iterable[Choice], gpu: Gpu | None = None) -> Network:
    """Build the network of *system*, on which these algorithms carry out *collectives*; *gpu* is by default its own."""
    algorithms = {choice.name: plugin("network.collectives", choice) for choice in collectives}
    return Network(system, algorithms, protocols_of(system), (gpu or gpu_of(system.gpu)).channel)


def protocols_of(system: System) -> dict[str, Protocol]:
    """The transport protocols that were measured on *system*."""
    return measured(system, [catalog.value(Transport, "transports", name) for name in system.transports])


def engine_of(name: str) -> EngineVersion:
    """Read an engine's release."""
    return structure(EngineVersion, with_base("engines", name), f"engine {name}")


def host_of(name: str) -> Host:
    """Read a host: what its CPUs add to requests and steps."""
    return structure(Host, with_base("hosts", name), f"host {name}")


def with_base(folder: str, name: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The data file *name*; a file that is `like` another states only the differences.  Those *above* are like it."""
    table = catalog.load(folder, name)
    if "like" not in table:
        return table
    if not isinstance(like := table.pop("like"), str):
        raise ConfigError(f"{name}: like", f"expected a name of `{folder}` or a file, not {like!r}")
    if like in (names := (*above, name)):
        raise ConfigError(f"{name}: like", f"leads back to {like!r}")
    return merge(with_base(folder, like, names), table)


def grid_of(name: str) -> ElectricGrid:
    """Read an electricity grid."""
    return catalog.value(ElectricGrid, "grids", name)


def rates_of(stated: Footprint, system: System) -> CostRates:
    """What a joule and a GPU-second of *system* emit and cost; raises ConfigError for a GPU without a price."""
    grams = stated.carbon_intensity if stated.grid is None else grid_of(stated.grid).intensity
    return CostRates(
        grams=_per(grams, KWH), dollars=_per(stated.price_per_kwh, KWH),
        gpu_dollars=_per(_price(stated.price_per_gpu_hour, system.gpu), HOUR), pue=stated.pue,
        beside=stated.host_watts / system.gpus_per_node + stated.nic_watts,
    )


def _price(stated: float | Mapping[str, float] | None, gpu: str) -> float | None:
    """The price of *gpu*, which a table names as the scenario does, or by the name of its file."""
    if not isinstance(stated, Mapping):
        return stated
    named = next((name for name in (gpu, Path(gpu).stem) if name in stated), None)
    if named is None:
        raise ConfigError("energy.price_per_gpu_hour", f"has no price of {gpu!r}; it has {', '.join(stated) or 'none'}")
    return stated[named]


def _per(rate: float | None, unit: float) -> float | None:
    return None if rate is None else rate / unit


def oracle_choice(choice: Choice | None, gpu: str) -> Choice:
    """*choice*, or by default the best latency oracle for *gpu*: measured where a profile ships, else learned."""
    return choice or Choice("measured" if shipped(gpu).exists() or gpu_of(gpu).profile else "learned")


def fused(settings: EngineSettings) -> tuple[Choice, ...]:
    """The fused collectives that an engine with complete *settings* prefers for messages that they take."""
    most = settings.fi_allreduce_fusion_max_size_mb
    if not settings.fuse_allreduce_rms or most is None:
        return ()
    return tuple(Choice(name, {"most": most * 2**20}) for name in ("fused", "fused_two_shot"))
