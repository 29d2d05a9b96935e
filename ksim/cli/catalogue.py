"""`ksim list`: what there is to choose from."""

import ast
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Kind(StrEnum):
    """What can be listed."""

    GPUS = "gpus"
    SYSTEMS = "systems"
    MODELS = "models"
    GRIDS = "grids"
    POLICIES = "policies"
    ADMISSIONS = "admissions"
    EVICTIONS = "evictions"
    ROUTERS = "routers"
    GOVERNORS = "governors"
    ORACLES = "oracles"
    COLLECTIVES = "collectives"
    TRACES = "traces"


_PLUGINS = {Kind.POLICIES: "scheduling.policies", Kind.ADMISSIONS: "scheduling.admissions",
            Kind.EVICTIONS: "memory.evictions", Kind.ROUTERS: "cluster.routers", Kind.GOVERNORS: "runtime.governors",
            Kind.ORACLES: "cost.oracles", Kind.COLLECTIVES: "cost.collectives", Kind.TRACES: "workload.traces"}


def list_entries(kind: Annotated[Kind, typer.Argument(help="what to list")]) -> None:
    """List the GPUs, systems, models, grids, or plug-ins of a kind."""
    from ksim.cli.screen import console, table

    catalogues = {Kind.GPUS: _gpus, Kind.SYSTEMS: _systems, Kind.MODELS: _models, Kind.GRIDS: _grids}
    header, rows = catalogues[kind]() if kind in catalogues else _plugins(_PLUGINS[kind])
    listed = table(*header)
    for row in rows:
        listed.add_row(*row)
    console().print(listed)


def _gpus() -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog
    from ksim.foundation.units import DType
    from ksim.studies.lookup import gpu_of

    gpus = {name: gpu_of(name) for name in catalog.entries("gpus")}
    formats = (DType.BF16, DType.FP8, DType.FP4)
    return ("name", "GPU", ">SMs", ">memory", ">bandwidth", *(f">{dtype} TFLOP/s" for dtype in formats), ">board power",
            "system"), (
        (name, gpu.name, str(gpu.sms), f"{gpu.memory / 2**30:.0f} GiB", f"{gpu.bandwidth / 1e12:.2f} TB/s",
         *(f"{gpu.flops[dtype] / 1e12:.0f}" if dtype in gpu.flops else "-" for dtype in formats),
         f"{gpu.power.limit:.0f} W", gpu.system) for name, gpu in gpus.items())


def _systems() -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog

    systems = {name: catalog.load("systems", name) for name in catalog.entries("systems")}
    return ("name", "system", "GPU", ">GPUs a node", "inside a node"), (
        (name, table["name"], table["gpu"], str(table["gpus_per_node"]), table["interconnect"])
        for name, table in systems.items())


def _models() -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog
    from ksim.specs.deployment import Shard
    from ksim.studies.lookup import model_of

    models = {name: model_of(name) for name in catalog.entries("models")}
    return ("name", ">parameters", ">active", ">layers", ">KV cache a token", ">context"), (
        (name, f"{model.parameters() / 1e9:.2f} B", f"{model.active_parameters() / 1e9:.2f} B", str(model.layers),
         f"{model.cache_per_token(Shard()) / 1024:.0f} KiB", str(model.max_length)) for name, model in models.items())


def _grids() -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog
    from ksim.studies.lookup import grid_of

    grids = {name: grid_of(name) for name in catalog.entries("grids")}
    return ("name", "electricity of", ">gCO2e/kWh", ">year", "source"), (
        (name, grid.name, f"{grid.intensity:.0f}", str(grid.year), grid.source.partition(",")[0])
        for name, grid in sorted(grids.items(), key=lambda item: item[1].intensity))


def _plugins(folder: str) -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    from ksim.foundation import catalog

    root = Path(catalog.__file__).parent.parent
    return ("name", "what it is"), (
        (name, _summary(root / folder.replace(".", "/") / f"{name}.py")) for name in catalog.names(folder))


def _summary(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
