"""`ksim list --json`: what can be listed, as records in SI units."""

from collections.abc import Iterable, Iterator
from typing import Any

from ksim.foundation import catalog

Record = dict[str, Any]


def gpus(files: Iterable[str]) -> Iterator[Record]:
    """The GPUs of the catalogue and of *files*."""
    from ksim.scenario.hardware import gpu_of

    for name in (*catalog.entries("gpus"), *files):
        gpu = gpu_of(name)
        yield {"name": name, "gpu": gpu.name, "architecture": gpu.architecture, "sms": gpu.sms,
               "clock_hertz": gpu.clock, "memory_bytes": gpu.memory, "bandwidth_bytes_per_second": gpu.bandwidth,
               "l2_bytes": gpu.l2, "flops_per_second": {str(dtype): rate for dtype, rate in gpu.flops.items()},
               "pcie_bytes_per_second": gpu.pcie, "nvlink_bytes_per_second": gpu.nvlink,
               "power_watts": gpu.power.limit, "power_basis": gpu.power.basis, "system": gpu.system or None}


def systems() -> Iterator[Record]:
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


def models(files: Iterable[str]) -> Iterator[Record]:
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


def drafters() -> Iterator[Record]:
    """The heads that draft tokens."""
    for name in catalog.entries("drafters"):
        head = catalog.load("drafters", name)
        sizes = {key: head.get(key, head["vocab_size"]) for key in ("hidden_size", "vocab_size", "draft_vocab_size")}
        yield {"name": name, **sizes, "source": head["_name_or_path"]}


def grids() -> Iterator[Record]:
    """The electric grids."""
    from ksim.scenario.hardware import grid_of

    for name in catalog.entries("grids"):
        grid = grid_of(name)
        yield {"name": name, "electricity_of": grid.name, "grams_co2e_per_kwh": grid.intensity, "year": grid.year,
               "source": grid.source}


def described(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[Record]:
    """Plug-ins and templates, from the rows of their table."""
    names = {"name": "name", "source": "source", "signals": "signals"}
    for row in rows:
        record = {names.get(title, "summary"): cell for title, cell in zip(header, row, strict=True)}
        if "signals" in record:
            said = record["signals"]
            yield {**record, "signals": [] if said == "none" else said.split(", ")}
        else:
            yield record
