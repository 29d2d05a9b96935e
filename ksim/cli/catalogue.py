"""`ksim list`: the GPUs, systems, models, grids and plug-ins to choose from."""

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ksim.cli.flags import STDOUT, JsonFile, Wide, console, write_json
from ksim.views.tables import Table

if TYPE_CHECKING:
    from ksim.cli.records import Record


class Kind(StrEnum):
    """What can be listed."""

    GPUS = "gpus"
    SYSTEMS = "systems"
    MODELS = "models"
    DRAFTERS = "drafters"
    GRIDS = "grids"
    POLICIES = "policies"
    ADMISSIONS = "admissions"
    ACCEPTANCES = "acceptances"
    EVICTIONS = "evictions"
    OFFLOAD_CONNECTORS = "offload_connectors"
    OFFLOAD_EVICTIONS = "offload_evictions"
    ROUTERS = "routers"
    PAIR_ROUTERS = "pair_routers"
    LLM_D_PARTS = "llm_d_parts"
    FLOW_CONTROLS = "flow_controls"
    CONNECTORS = "connectors"
    GOVERNORS = "governors"
    ORACLES = "oracles"
    COLLECTIVES = "collectives"
    TRACES = "traces"
    TEMPLATES = "templates"
    RECORDINGS = "recordings"
    DATASETS = "datasets"


_PLUGINS = {Kind.POLICIES: "scheduling.policies", Kind.ADMISSIONS: "scheduling.admissions",
            Kind.ACCEPTANCES: "scheduling.acceptances",
            Kind.EVICTIONS: "kv.cache.evictions", Kind.OFFLOAD_EVICTIONS: "kv.offload.evictions",
            Kind.OFFLOAD_CONNECTORS: "kv.offload.connectors",
            Kind.ROUTERS: "cluster.routers", Kind.PAIR_ROUTERS: "cluster.pair_routers",
            Kind.FLOW_CONTROLS: "cluster.flow_controls", Kind.CONNECTORS: "kv.transfer.connectors",
            Kind.GOVERNORS: "engine.governors", Kind.ORACLES: "oracles", Kind.COLLECTIVES: "network.collectives",
            Kind.TRACES: "workload.traces", Kind.RECORDINGS: "validation.recordings",
            Kind.DATASETS: "workload.datasets", Kind.LLM_D_PARTS: "cluster.llm_d.parts"}

#: Those that go by signals of engines, and what one goes by that does not say it.
_CHOOSERS = (Kind.ROUTERS, Kind.PAIR_ROUTERS, Kind.FLOW_CONTROLS)
USUAL = ("books", "metrics", "kv_events")
#: The columns that are left out where there is no room, the first ones first.
_HIDE = {Kind.GPUS: ("power is", "architecture", "system", "fp4 TFLOP/s", "SMs", "to its peers", "board power"),
         Kind.SYSTEMS: ("disks, read", "host memory", "inside a node", "to other nodes, a GPU", "system"),
         Kind.MODELS: ("state a sequence", "layers", "active", "stored in", "context"),
         Kind.DRAFTERS: ("of the drafter", "vocabulary"), Kind.GRIDS: ("year",),
         **dict.fromkeys(_CHOOSERS, ("source",))}


def list_entries(
    kind: Annotated[Kind, typer.Argument(help="what to list")],
    files: Annotated[list[str] | None, typer.Argument(help="files of your own GPUs or models, to list too")] = None,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """List GPUs, systems, models, grids, or the plug-ins of one kind."""
    from ksim.foundation.errors import ConfigError

    if files and kind not in (Kind.GPUS, Kind.MODELS):
        raise ConfigError(f"ksim list {kind}", "takes no files; only gpus and models do")
    if json_file is not None:
        write_json(json_file, {"kind": str(kind), "entries": [*_records(kind, files or [])]})
    if json_file != STDOUT:
        _show(kind, files or [])


def _records(kind: Kind, files: list[str]) -> "Iterable[Record]":
    from ksim.cli import records

    if kind in (Kind.GPUS, Kind.MODELS):
        return {Kind.GPUS: records.gpus, Kind.MODELS: records.models}[kind](files)
    made = {Kind.SYSTEMS: records.systems, Kind.GRIDS: records.grids,
            Kind.DRAFTERS: records.drafters}
    if kind in made:
        return made[kind]()
    return records.described(*(_templates() if kind is Kind.TEMPLATES else _choosers(_PLUGINS[kind])
                                      if kind in _CHOOSERS else _plugins(_PLUGINS[kind])))


def _show(kind: Kind, files: list[str]) -> None:
    """Print the table of what there is of *kind*."""
    catalogues = {Kind.SYSTEMS: _systems, Kind.GRIDS: _grids, Kind.DRAFTERS: _drafters,
                  Kind.TEMPLATES: _templates}
    with_files = {Kind.GPUS: _gpus, Kind.MODELS: _models}
    header, rows = (with_files[kind](files) if kind in with_files else catalogues[kind]() if kind in catalogues else
                    _choosers(_PLUGINS[kind]) if kind in _CHOOSERS else _plugins(_PLUGINS[kind]))
    console().print(Table.of(*header, rows=rows, hide=_HIDE.get(kind, ())))
    if kind is Kind.SYSTEMS:
        header, rows = _links()
        console().print(Table.of(*header, rows=rows, hide=header[:2:-1],
                                 title="links, one way: GB/s that flows reach, of the line rate (docs/fleets.md)"))


def _gpus(files: Iterable[str]) -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog
    from ksim.foundation.units import DType
    from ksim.scenario.hardware import gpu_of

    gpus = {name: gpu_of(name) for name in (*catalog.entries("gpus"), *files)}
    formats = (DType.BF16, DType.FP8, DType.FP4)
    return ("name", "GPU", "architecture", ">SMs", ">memory", ">bandwidth", *(f">{dtype} TFLOP/s" for dtype in formats),
            ">to its peers", ">board power", "power is", "system"), (
        (name, gpu.name, gpu.architecture, str(gpu.sms), f"{gpu.memory / 2**30:.0f} GiB",
         f"{gpu.bandwidth / 1e9:,.0f} GB/s",
         *(f"{gpu.flops[dtype] / 1e12:,.0f}" if dtype in gpu.flops else "-" for dtype in formats),
         f"{(gpu.nvlink or gpu.pcie) / 1e9:,.0f} GB/s", f"{gpu.power.limit:,.0f} W", gpu.power.basis,
         gpu.system or ("-" if gpu.nvlink else "PCIe")) for name, gpu in gpus.items())


def _systems() -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog
    from ksim.foundation.units import GIB
    from ksim.scenario.hardware import system_of

    systems = {name: system_of(None, name) for name in catalog.entries("systems")}
    return ("name", "system", "GPU", ">GPUs a node", "inside a node", ">a GPU, one way", ">to other nodes, a GPU",
            ">host memory", ">disks, read"), (
        (name, system.name, system.gpu, str(system.gpus_per_node), system.interconnect,
         f"{system.inside.bandwidth / 1e9:,.0f} GB/s",
         f"{system.network.bandwidth / 1e9:,.4g} GB/s" if system.network else "-",
         f"{system.memory / GIB:,.0f} GiB" if system.memory else "-",
         f"{system.disk.read / 1e9:,.0f} GB/s" if system.disk else "-") for name, system in systems.items())


def _links() -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    """The links of each system: of a GPU, between sockets, from a leaf switch to the spine, and to the storage."""
    from ksim.foundation import catalog
    from ksim.scenario.hardware import links_of, system_of

    kinds = {"nvlink": "NVLink", "pcie": "PCIe", "pcie_joint": "PCIe both ways", "sockets": "between sockets",
             "nic": "NIC of a GPU", "leaf": "leaf to spine", "storage": "storage"}
    rows = []
    for name in catalog.entries("systems"):
        links = links_of(system_of(None, name)).by_kind
        rows.append((name, *(f"{links[kind].capacity / 1e9:,.4g} of {links[kind].peak / 1e9:,.4g}" if kind in links
                             else "-" for kind in kinds)))
    return ("name", *(f">{said}" for said in kinds.values())), rows


def _models(files: Iterable[str]) -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog
    from ksim.scenario.models import model_of
    from ksim.specs.settings import EngineSettings
    from ksim.specs.shard import Shard

    rows = []
    for name in (*catalog.entries("models"), *files):
        model = model_of(name)
        stored = EngineSettings(quantization=model.decoder.quantization, unquantized=model.decoder.unquantized)
        shard = Shard(precision=stored.precision)
        rows.append((name, f"{model.parameters() / 1e9:,.2f} B", f"{model.active_parameters() / 1e9:.2f} B",
                     stored.quantization.replace("none", "bf16"), f"{model.weights(shard) / 2**30:,.0f} GiB",
                     str(model.layers), f"{model.cache_per_token(shard) / 1024:.0f} KiB",
                     f"{state / 2**20:.0f} MiB" if (state := model.state_per_sequence(shard)) else "-",
                     f"{model.max_length:,} tokens"))
    return ("name", ">parameters", ">active", "stored in", ">weights", ">layers", ">KV cache a token",
            ">state a sequence", ">context"), rows


def _drafters() -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog

    heads = {name: catalog.load("drafters", name) for name in catalog.entries("drafters")}
    return ("name", ">hidden size", ">vocabulary", ">of the drafter", "source"), (
        (name, *(f"{head.get(key, head['vocab_size']):,}" for key in ("hidden_size", "vocab_size", "draft_vocab_size")),
         head["_name_or_path"]) for name, head in heads.items())


def _templates() -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog
    from ksim.scenario.schema import summary

    return ("name", "what `ksim new --template` writes"), (
        (name, summary(name)) for name in catalog.entries("templates"))


def _grids() -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog
    from ksim.scenario.hardware import grid_of

    grids = {name: grid_of(name) for name in catalog.entries("grids")}
    return ("name", "electricity of", ">gCO2e/kWh", ">year", "source"), (
        (name, grid.name, f"{grid.intensity:.0f}", str(grid.year), grid.source.partition(",")[0])
        for name, grid in sorted(grids.items(), key=lambda item: item[1].intensity))


def _plugins(folder: str) -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog

    return ("name", "what it is"), ((name, catalog.summary(folder, name)) for name in catalog.names(folder))


def _choosers(folder: str) -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    """Plug-ins that choose engines or hold requests back: whose rule each is, and which signals it goes by."""
    from ksim.foundation.catalog import plugin
    from ksim.foundation.config import Choice

    header, listed = _plugins(folder)
    made = ((row, plugin(folder, Choice(row[0]))) for row in listed)
    return (*header, "source", "signals"), (
        (*row, getattr(chooser, "source", ""), ", ".join(getattr(chooser, "signals", USUAL)) or "none")
        for row, chooser in made)
