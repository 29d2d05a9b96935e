"""Names to values: the models, hardware, releases and plug-ins that a scenario names."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from attrs import evolve

from ksim.calibration.datasheet import check_quantities, gpu_named
from ksim.compute.model import Config, Model
from ksim.foundation import catalog
from ksim.foundation.config import Choice, structure
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import HOUR, KWH
from ksim.network.network import Network
from ksim.network.protocols import Protocol, measured
from ksim.oracles.efficiency.profiled import shipped
from ksim.results.footprint import Rates
from ksim.scheduling.policies import POLICY_MEMBERS
from ksim.simulation.families import family
from ksim.specs.engine import EngineVersion
from ksim.specs.footprint import Footprint, Grid
from ksim.specs.hardware import Gpu, Link, System, Transport
from ksim.specs.host import Host


def plugin(folder: str, choice: Choice) -> Any:
    """Build the plug-in that *choice* names, its options set as the fields of its class."""
    made = catalog.find(folder, choice.name)
    if isinstance(made, type):
        return structure(made, choice.options, choice.name) if hasattr(made, "__attrs_attrs__") else _call(made, choice)
    if choice.options:
        raise ConfigError(choice.name, f"takes no options, and was given {', '.join(choice.options)}")
    return made


def _call(made: type, choice: Choice) -> Any:
    """Build a plug-in whose class is a plain one."""
    try:
        return made(**choice.options)
    except TypeError as error:
        raise ConfigError(choice.name, str(error)) from None


def model_of(name: str) -> Model:
    """Read a model: the path of a config.json or of its folder, or a catalogue name.

    Raises UnknownName, DataError, ConfigError.
    """
    return model_of_table(name, catalog.load("models", name))


def model_of_table(name: str, table: Mapping[str, Any]) -> Model:
    """The model that a config.json with the content *table* describes; *name* is for messages.  Raises ConfigError."""
    config = Config(name, table)
    return Model(name, catalog.find("compute.architectures", family(config))(config))


def gpu_of(name: str) -> Gpu:
    """Read a GPU: a catalogue name, or the path of a file; raises UnknownName, DataError, ConfigError."""
    return gpu_named(name)


#: The system whose links one without a name of its own has, and the share of PCIe that its GPUs reach.
USUAL, REACHED = "pcie-l4", 0.63


def system_of(gpu: str | None, system: str | None = None, nodes: int | None = None) -> System:
    """The *system* of that name, or the *gpu*'s usual one, with that GPU in it and so many *nodes*; one may be None.

    A GPU whose file names no system is alone, or, without NVLink, in a node of eight over PCIe.  Raises ConfigError
    where both are named and the GPU is neither the system's nor made for it, or has other links.
    """
    if not gpu and not system:
        raise ConfigError("gpu, system", "name one of them (see `ksim list gpus`, `ksim list systems`)")
    own = gpu_of(gpu) if gpu else None
    name = system or (own.system if own else "")
    if not name and own:
        return _unnamed(own, cast("str", gpu), nodes)
    table = catalog.load("systems", name)
    if nodes is not None:
        table["nodes"] = nodes
    if own is not None:
        if gpu != table.get("gpu") and own.system != name:
            raise ConfigError("gpu", f"is {gpu!r}, but system {name!r} has {table.get('gpu')!r}; name one of them")
        table["gpu"] = gpu
    check_quantities(_links(table), f"system {name}")
    found = structure(System, table, f"system {name}")
    _check_links(found, own or gpu_of(found.gpu), name)
    return found


def _unnamed(own: Gpu, gpu: str, nodes: int | None) -> System:
    """The system of a GPU whose file names none."""
    if nodes is not None and nodes > 1:
        raise ConfigError("nodes", f"{nodes} nodes of {own.name} need a system that says how they are connected; name"
                                   " one (docs/plugins.md)")
    if own.nvlink:
        link = Link(own.nvlink, source="the GPU's own; one card uses none of it")
        return System(f"one {own.name}", gpu, 1, "nvlink", link)
    like = structure(System, catalog.load("systems", USUAL), USUAL)
    return evolve(like, name=f"8 x {own.name} over PCIe", gpu=gpu, network=None, transports=(), source="assumed",
                  inside=Link(own.pcie, REACHED, "the GPU's own; the share is that of L40S"))


def _links(table: Mapping[str, Any]) -> Iterator[tuple[str, Any, tuple[str, float, float]]]:
    """The bandwidths of a system's links, with their keys, unit and range."""
    for key in ("inside", "network", "between_sockets"):
        if isinstance(link := table.get(key), Mapping) and "bandwidth" in link:
            yield f"{key}.bandwidth", link["bandwidth"], ("B/s", 1e8, 1e14)


def _check_links(system: System, gpu: Gpu, name: str) -> None:
    """Raise ConfigError for GPUs in a system whose links they lack."""
    has = gpu.nvlink if system.interconnect == "nvlink" else gpu.pcie
    if has < system.inside.bandwidth * (1 - 1e-9):
        raise ConfigError("system", f"{name!r} joins its GPUs over {system.interconnect} of"
                                    f" {system.inside.bandwidth / 1e9:g} GB/s, and {gpu.name} has {has / 1e9:g} GB/s of"
                                    " it; name a system of that GPU, or none")


def network_of(system: System, collectives: Iterable[Choice]) -> Network:
    """The network of *system*, on which these algorithms carry out collectives."""
    algorithms = {choice.name: plugin("network.collectives", choice) for choice in collectives}
    return Network(system, algorithms, protocols_of(system), gpu_of(system.gpu).channel)


def protocols_of(system: System) -> dict[str, Protocol]:
    """The transport protocols that were measured on *system*."""
    return measured(system, [structure(Transport, catalog.load("transports", name), f"transport {name}")
                             for name in system.transports])


def engine_of(name: str) -> EngineVersion:
    """Read an engine's release; one that is `like` another says only where it differs.

    Raises UnknownName, DataError, ConfigError.
    """
    return structure(EngineVersion, _whole("engines", name), f"engine {name}")


def policy_of(choice: Choice) -> Any:
    """Build a scheduling policy; raises ConfigError for one from elsewhere that has nothing a policy can have."""
    policy = plugin("scheduling.policies", choice)
    if ":" in choice.name and not any(hasattr(policy, member) for member in POLICY_MEMBERS):
        raise ConfigError(choice.name, f"has none of {', '.join(POLICY_MEMBERS)}, so it is no policy")
    return policy


def oracle_choice(choice: Choice | None, gpu: str) -> Choice:
    """The latency oracle that is asked for, or else the best that there is for the GPU called *gpu*."""
    return choice or Choice("measured" if shipped(gpu).exists() else "learned")


def host_of(name: str) -> Host:
    """Read a host; one that is `like` another says only where it differs.

    Raises UnknownName, DataError, ConfigError.
    """
    return structure(Host, _whole("hosts", name), f"host {name}")


def _whole(folder: str, name: str) -> dict[str, Any]:
    """The data file *name*, with what it leaves out taken from the one that it is `like`."""
    table = catalog.load(folder, name)
    if "like" not in table:
        return table
    if not isinstance(like := table.pop("like"), str):
        raise ConfigError(f"{name}: like", f"expected a name of `{folder}` or a file, not {like!r}")
    return _over(catalog.load(folder, like), table)


def grid_of(name: str) -> Grid:
    return structure(Grid, catalog.load("grids", name), f"grid {name}")


def rates_of(stated: Footprint, system: System) -> Rates:
    """What energy and GPUs of *system* emit and cost; raises UnknownName or DataError for a grid."""
    grams = stated.carbon_intensity if stated.grid is None else grid_of(stated.grid).intensity
    return Rates(
        grams=_each(grams, KWH), dollars=_each(stated.price_per_kwh, KWH),
        gpu_dollars=_each(stated.price_per_gpu_hour, HOUR), pue=stated.pue,
        beside=stated.host_watts / system.gpus_per_node + stated.nic_watts,
    )


def _each(rate: float | None, unit: float) -> float | None:
    return None if rate is None else rate / unit


def _over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """*base* with *changes*, tables in tables as well."""
    return {**base, **{key: _over(base[key], value) if isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
                       else value for key, value in changes.items()}}
