"""`ksim list`: the GPUs, systems, models, grids and plug-ins to choose from, as tables and as JSON in SI units."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any

import typer
from attrs import frozen

from ksim.cli.flags import JsonFile, Wide, console, write_json
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import GIB, DType
from ksim.views.tables import Table


class CatalogKind(StrEnum):
    """What can be listed."""

    GPUS = "gpus"
    SYSTEMS = "systems"
    MODELS = "models"
    DRAFTERS = "drafters"
    ENGINES = "engines"
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
    AUTOSCALERS = "autoscalers"
    CONNECTORS = "connectors"
    GOVERNORS = "governors"
    ORACLES = "oracles"
    COLLECTIVES = "collectives"
    TRACES = "traces"
    TEMPLATES = "templates"
    RECORDINGS = "recordings"
    DATASETS = "datasets"


#: The folders of plug-ins; those of data files are called as their kinds.
_FOLDERS = {CatalogKind.POLICIES: "scheduling.policies", CatalogKind.ADMISSIONS: "scheduling.admissions",
            CatalogKind.ACCEPTANCES: "scheduling.acceptances",
            CatalogKind.EVICTIONS: "kv.cache.evictions", CatalogKind.OFFLOAD_EVICTIONS: "kv.offload.evictions",
            CatalogKind.OFFLOAD_CONNECTORS: "kv.offload.connectors",
            CatalogKind.ROUTERS: "cluster.routers", CatalogKind.PAIR_ROUTERS: "cluster.pair_routers",
            CatalogKind.FLOW_CONTROLS: "cluster.flow_controls", CatalogKind.AUTOSCALERS: "autoscaling",
            CatalogKind.CONNECTORS: "kv.transfer.connectors",
            CatalogKind.GOVERNORS: "engine.governors", CatalogKind.ORACLES: "oracles",
            CatalogKind.COLLECTIVES: "network.collectives",
            CatalogKind.TRACES: "workload.traces", CatalogKind.RECORDINGS: "validation.recordings",
            CatalogKind.DATASETS: "workload.datasets", CatalogKind.LLM_D_PARTS: "cluster.llm_d.parts"}

#: Plug-ins that go by signals of engines, and what one goes by that does not say it.
_CHOOSERS = (CatalogKind.ROUTERS, CatalogKind.PAIR_ROUTERS, CatalogKind.FLOW_CONTROLS)
USUAL = ("books", "metrics", "kv_events")

CatalogEntry = dict[str, Any]


def list_entries(
    kind: Annotated[CatalogKind | None, typer.Argument(help="what to list; by default the kinds that there are")]
    = None,
    files: Annotated[list[str] | None, typer.Argument(help="files of your own GPUs or models, to list too")] = None,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """List GPUs, systems, models, engines, grids, or the plug-ins of one kind; by default the kinds."""
    if kind is None:
        _list_kinds(json_file)
        return
    if files and kind not in (CatalogKind.GPUS, CatalogKind.MODELS):
        raise ConfigError(f"ksim list {kind}", "takes no files; only gpus and models do")
    listing = _LISTINGS.get(kind) or (_CHOOSER if kind in _CHOOSERS else _PLUGIN)
    entries = [*listing.entries(_FOLDERS[kind])] if kind in _FOLDERS else [*listing.entries(*(files or []))]
    write_json(json_file, {"kind": str(kind), "entries": entries})
    console().print(listing.table(entries))
    if kind is CatalogKind.SYSTEMS:
        console().print(_links(entries))


def _list_kinds(json_file: Any) -> None:
    """Print every kind, with how many there are of it."""
    counts = {kind: catalog.choices(_FOLDERS.get(kind, kind)) for kind in CatalogKind}
    write_json(json_file, {"kinds": [{"kind": str(kind), "entries": len(names)} for kind, names in counts.items()]})
    rows = Table.of("kind", ">entries", "such as", hide=("such as",))
    for kind, names in counts.items():
        rows.add_row(kind, str(len(names)), ", ".join(islice(names, 3)))
    console().print(rows)


@frozen
class Listing:
    """How a kind is listed: its entries, and the columns of their table, of which `hide` go first where room lacks.

    Each column has a title, and what its cell says of an entry.  The table is in the order of `sort`.
    """

    entries: Callable[..., Iterable[CatalogEntry]]
    columns: Mapping[str, Callable[[CatalogEntry], str]]
    hide: tuple[str, ...] = ()
    sort: Callable[[CatalogEntry], float] | None = None
    title: str = ""

    def table(self, entries: Iterable[CatalogEntry]) -> Table:
        """The *entries*, a row each."""
        rows = sorted(entries, key=self.sort) if self.sort else entries
        return Table.of("name", *self.columns, hide=self.hide, rows=(
            (entry["name"], *(cell(entry) for cell in self.columns.values())) for entry in rows), title=self.title)


def _gpus(*files: str) -> Iterator[CatalogEntry]:
    """The GPUs of the catalogue and of *files*."""
    from ksim.scenario.hardware import gpu_of

    for name in dict.fromkeys((*catalog.entries("gpus"), *files)):
        gpu = gpu_of(name)
        yield {"name": name, "gpu": gpu.name, "architecture": gpu.architecture, "sms": gpu.sms,
               "clock_hertz": gpu.clock, "memory_bytes": gpu.memory, "bandwidth_bytes_per_second": gpu.bandwidth,
               "l2_bytes": gpu.l2, "flops_per_second": {str(dtype): rate for dtype, rate in gpu.flops.items()},
               "pcie_bytes_per_second": gpu.pcie, "nvlink_bytes_per_second": gpu.nvlink,
               "power_watts": gpu.power.limit, "power_basis": gpu.power.basis, "system": gpu.system or None}


def _peak(dtype: DType) -> Callable[[CatalogEntry], str]:
    """The column of a GPU's peak in *dtype*, in TFLOP/s."""
    def cell(gpu: CatalogEntry) -> str:
        rate = gpu["flops_per_second"].get(str(dtype))
        return "-" if rate is None else f"{rate / 1e12:,.0f}"

    return cell


def _systems() -> Iterator[CatalogEntry]:
    """The systems of the catalogue, with their links."""
    from ksim.scenario.hardware import links_of, system_of

    for name in catalog.entries("systems"):
        system = system_of(None, name)
        links = {kind: {"capacity_bytes_per_second": link.capacity, "peak_bytes_per_second": link.peak}
                 for kind, link in links_of(system).by_kind.items()}
        yield {"name": name, "system": system.name, "gpu": system.gpu, "gpus_per_node": system.gpus_per_node,
               "interconnect": system.interconnect, "inside_bytes_per_second": system.inside.bandwidth,
               "network_bytes_per_second": system.network and system.network.bandwidth,
               "memory_bytes": system.memory, "disk_read_bytes_per_second": system.disk and system.disk.read,
               "links": links}


def _links(systems: Iterable[CatalogEntry]) -> Table:
    """The links of each system: of a GPU, between sockets, from a leaf switch to the spine, and to the storage."""
    kinds = {"nvlink": "NVLink", "pcie": "PCIe", "pcie_joint": "PCIe both ways", "sockets": "between sockets",
             "nic": "NIC of a GPU", "leaf": "leaf to spine", "storage": "storage"}

    def cell(link: Mapping[str, float] | None) -> str:
        return "-" if link is None else (
            f"{link['capacity_bytes_per_second'] / 1e9:,.4g} of {link['peak_bytes_per_second'] / 1e9:,.4g}")

    header = ("name", *(f">{title}" for title in kinds.values()))
    return Table.of(*header, hide=header[:2:-1], rows=(
        (system["name"], *(cell(system["links"].get(kind)) for kind in kinds)) for system in systems),
        title="links, one way: GB/s that flows reach, of the line rate (docs/fleets.md)")


def _models(*files: str) -> Iterator[CatalogEntry]:
    """The models of the catalogue and of *files*, in the formats that they are stored in."""
    from ksim.scenario.models import model_of
    from ksim.specs.settings import EngineSettings
    from ksim.specs.shard import Shard

    for name in (*catalog.entries("models"), *files):
        model = model_of(name)
        stored = EngineSettings(quantization=model.decoder.quantization, unquantized=model.decoder.unquantized)
        shard = Shard(precision=stored.precision)
        yield {"name": name, "parameters": model.parameters(), "active_parameters": model.active_parameters(),
               "quantization": stored.quantization, "weight_bytes": model.weights(shard), "layers": model.layers,
               "kv_cache_bytes_per_token": model.cache_per_token(shard),
               "state_bytes_per_sequence": model.state_per_sequence(shard), "context_tokens": model.max_length}


def _drafters() -> Iterator[CatalogEntry]:
    """The heads that draft tokens."""
    for name in catalog.entries("drafters"):
        head = catalog.load("drafters", name)
        sizes = {key: head.get(key, head["vocab_size"]) for key in ("hidden_size", "vocab_size", "draft_vocab_size")}
        yield {"name": name, **sizes, "source": head["_name_or_path"]}


#: For what the defaults of engines are listed, as they follow from the model and the GPU.
_ENGINE_MODEL, _ENGINE_GPUS = "llama-3.1-8b", ("h100", "b200")
#: The settings that are listed: those that follow in any engine, whatever it calls them.
_ENGINE_SETTINGS = ("block_size", "max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization",
                    "async_scheduling", "enable_prefix_caching", "cudagraph_mode")


def _engines() -> Iterator[CatalogEntry]:
    """The releases of engines: whose scheduler each has, its defaults by GPU, and how fast its own kernels are."""
    from ksim.scenario.defaults import Defaults
    from ksim.scenario.hardware import engine_of, gpu_of
    from ksim.scenario.models import model_of
    from ksim.specs.settings import EngineSettings

    model = model_of(_ENGINE_MODEL)
    for name in catalog.entries("engines"):
        version, defaults = engine_of(name), {}
        for gpu in _ENGINE_GPUS:
            complete = Defaults(EngineSettings(), version, model, gpu_of(gpu)).complete()
            defaults[gpu] = {key: getattr(complete, key) for key in _ENGINE_SETTINGS}
        yield {"name": name, "engine": version.name, "scheduler": version.scheduler, "model": _ENGINE_MODEL,
               "defaults": defaults, "kernel_paces": {**version.paces}, "kernel_ceilings": {**version.ceilings},
               "source": version.source}


def _default(key: str, form: str = "{}") -> Callable[[CatalogEntry], str]:
    """The column of a default of engines; of each GPU where they differ."""
    def cell(engine: CatalogEntry) -> str:
        return " / ".join(dict.fromkeys(form.format(settings[key]) for settings in engine["defaults"].values()))

    return cell


def _overlaps(engine: CatalogEntry) -> str:
    return "yes" if all(settings["async_scheduling"] for settings in engine["defaults"].values()) else "no"


def _kernels(engine: CatalogEntry) -> str:
    """How long kernels of an engine's own take, over those that were measured; at most, over the roofline."""
    return ", ".join([*(f"{kernel} x {_by_rows(pace)}" for kernel, pace in engine["kernel_paces"].items()),
                      *(f"{kernel} at most {_by_rows(most)} x roofline" for kernel, most in
                        engine["kernel_ceilings"].items())]) or "as measured"


def _by_rows(factor: float | Mapping[str, float]) -> str:
    if not isinstance(factor, Mapping):
        return f"{factor:g}"
    return f"{min(factor.values()):g} to {max(factor.values()):g}"


def _grids() -> Iterator[CatalogEntry]:
    """The electric grids."""
    from ksim.scenario.hardware import grid_of

    for name in catalog.entries("grids"):
        grid = grid_of(name)
        yield {"name": name, "electricity_of": grid.name, "grams_co2e_per_kwh": grid.intensity, "year": grid.year,
               "source": grid.source}


def _templates() -> Iterator[CatalogEntry]:
    from ksim.scenario.schema import summary

    return ({"name": name, "summary": summary(name)} for name in catalog.entries("templates"))


def _plugins(folder: str) -> Iterator[CatalogEntry]:
    return ({"name": name, "summary": catalog.summary(folder, name)} for name in catalog.names(folder))


def _choosers(folder: str) -> Iterator[CatalogEntry]:
    """Plug-ins that choose engines or hold requests back: whose rule each is, and which signals it goes by."""
    from ksim.foundation.config import Choice

    for entry in _plugins(folder):
        chooser = catalog.plugin(folder, Choice(entry["name"]))
        yield {**entry, "source": getattr(chooser, "source", ""), "signals": [*getattr(chooser, "signals", USUAL)]}


def _key(key: str, form: str = "{}", scale: float = 1.0) -> Callable[[CatalogEntry], str]:
    """A column of what an entry has under *key*, in units of *scale* where that is not 1; "-" where it has nothing."""
    def cell(entry: CatalogEntry) -> str:
        value = entry[key]
        return "-" if value is None or value == 0 else form.format(value if scale == 1 else value / scale)

    return cell


_PLUGIN = Listing(_plugins, {"what it is": _key("summary")})
_CHOOSER = Listing(_choosers, {
    "what it is": _key("summary"), "source": _key("source"),
    "signals": lambda entry: ", ".join(entry["signals"]) or "none"}, hide=("source",))
_LISTINGS = {
    CatalogKind.GPUS: Listing(_gpus, {
        "GPU": _key("gpu"), "architecture": _key("architecture"), ">SMs": _key("sms"),
        ">memory": _key("memory_bytes", "{:.0f} GiB", GIB),
        ">bandwidth": _key("bandwidth_bytes_per_second", "{:,.0f} GB/s", 1e9),
        **{f">{dtype} TFLOP/s": _peak(dtype) for dtype in (DType.BF16, DType.FP8, DType.FP4)},
        ">to its peers": lambda gpu: f"{(gpu['nvlink_bytes_per_second'] or gpu['pcie_bytes_per_second']) / 1e9:,.0f}"
                                     " GB/s",
        ">board power": _key("power_watts", "{:,.0f} W"), "power is": _key("power_basis"),
        "system": lambda gpu: gpu["system"] or ("-" if gpu["nvlink_bytes_per_second"] else "PCIe")},
        hide=("power is", "architecture", "system", "fp4 TFLOP/s", "SMs", "to its peers", "board power")),
    CatalogKind.SYSTEMS: Listing(_systems, {
        "system": _key("system"), "GPU": _key("gpu"), ">GPUs a node": _key("gpus_per_node"),
        "inside a node": _key("interconnect"),
        ">a GPU, one way": _key("inside_bytes_per_second", "{:,.0f} GB/s", 1e9),
        ">to other nodes, a GPU": _key("network_bytes_per_second", "{:,.4g} GB/s", 1e9),
        ">host memory": _key("memory_bytes", "{:,.0f} GiB", GIB),
        ">disks, read": _key("disk_read_bytes_per_second", "{:,.0f} GB/s", 1e9)},
        hide=("disks, read", "host memory", "inside a node", "to other nodes, a GPU", "system")),
    CatalogKind.MODELS: Listing(_models, {
        ">parameters": _key("parameters", "{:,.2f} B", 1e9), ">active": _key("active_parameters", "{:.2f} B", 1e9),
        "stored in": lambda model: model["quantization"].replace("none", "bf16"),
        ">weights": _key("weight_bytes", "{:,.0f} GiB", GIB), ">layers": _key("layers"),
        ">KV cache a token": lambda model: f"{model['kv_cache_bytes_per_token'] / 1024:.0f} KiB",
        ">state a sequence": _key("state_bytes_per_sequence", "{:.0f} MiB", 2**20),
        ">context": _key("context_tokens", "{:,} tokens")},
        hide=("state a sequence", "layers", "active", "stored in", "context")),
    CatalogKind.DRAFTERS: Listing(_drafters, {
        ">hidden size": _key("hidden_size", "{:,}"), ">vocabulary": _key("vocab_size", "{:,}"),
        ">of the drafter": _key("draft_vocab_size", "{:,}"), "source": _key("source")},
        hide=("of the drafter", "vocabulary")),
    CatalogKind.ENGINES: Listing(_engines, {
        "engine": _key("engine"),
        "scheduler": lambda engine: {"vllm": "vLLM's", "sglang": "SGLang's"}[engine["scheduler"]],
        ">tokens a block": _default("block_size"), ">tokens a step": _default("max_num_batched_tokens", "{:,}"),
        ">sequences": _default("max_num_seqs", "{:,}"), ">memory used": _default("gpu_memory_utilization", "{:.0%}"),
        "overlap": _overlaps, "kernels": _kernels, "source": lambda engine: engine["source"].partition(":")[0]},
        hide=("source", "engine", "overlap", "memory used", "kernels"),
        title=f"defaults for {_ENGINE_MODEL}, on {' / '.join(_ENGINE_GPUS)} where they differ"),
    CatalogKind.GRIDS: Listing(_grids, {
        "electricity of": _key("electricity_of"),
        ">gCO2e/kWh": lambda grid: f"{grid['grams_co2e_per_kwh']:.0f}", ">year": _key("year"),
        "source": lambda grid: grid["source"].partition(",")[0]},
        hide=("year",), sort=lambda grid: grid["grams_co2e_per_kwh"]),
    CatalogKind.TEMPLATES: Listing(_templates, {"what `ksim new --template` writes": _key("summary")}),
}
