"""`ksim list --json`: what can be listed, as records in SI units.

What `ksim step` knows of a step, as records: its kernels and its totals.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from ksim.foundation import catalog

if TYPE_CHECKING:
    from ksim.flow.batch import Batch
    from ksim.flow.steps import KernelCost, StepCost
    from ksim.scenario.defaults import Deployment


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


def counted(step: "StepCost") -> "dict[KernelCost, int]":
    """The kernels of *step*, equal ones once, with how often each runs."""
    merged: dict[KernelCost, int] = {}
    for span, runs in step.counted():
        merged[span] = merged.get(span, 0) + runs
    return merged


def totals(deployment: "Deployment", batch: "Batch", step: "StepCost") -> dict[str, Any]:
    """GPU and host time, and what share of the peaks the step reaches."""
    gpu = deployment.gpu
    peak = gpu.flops[deployment.serve.precision.activations.element]
    return {"gpu_seconds": step.seconds, "gpu_seconds_low": step.low, "gpu_seconds_high": step.high,
            "launch": step.launch, "host_input_seconds": deployment.host.worker.preparing(batch.sequences),
            "host_launch_seconds": step.launch_seconds, "mfu_share": step.flops / step.seconds / peak,
            "mbu_share": step.bytes / step.seconds / gpu.bandwidth,
            "joules_per_gpu": step.joules + gpu.power.idle * step.seconds, "power_basis": gpu.power.basis,
            "extrapolated_share": step.extrapolated / step.seconds}


def content(deployment: "Deployment", batch: "Batch", steps: "Sequence[StepCost]") -> dict[str, Any]:
    """The *steps* of one rank of each pipeline stage for *batch*, for a JSON file."""
    return {"model": deployment.scenario.model, "gpu": deployment.gpu.name, "gpus": deployment.serve.gpus,
            "data_parallel_size": deployment.serve.data_parallel_size,
            "decodes": len(batch.contexts), "prompt_chunks": len(batch.chunks), "tokens": batch.tokens,
            "stages": [{**totals(deployment, batch, step), "kernels": [
                _kernel(span, runs, step.seconds) for span, runs in counted(step).items()]} for step in steps]}


def _kernel(span: "KernelCost", runs: int, total: float) -> dict[str, Any]:
    seconds = runs * span.seconds
    return {"kernel": span.label, "family": span.family, "shape": str(span.shape), "runs": runs,
            "seconds_each": span.lasts, "seconds_all": seconds, "hidden": bool(span.hidden),
            "share": seconds / total, "bound": span.bound, "waves": span.waves or None,
            "idle_share": span.idle if span.waves else None, "launch": span.launch,
            "eta": None if isnan(span.roofline_ratio) else span.roofline_ratio,
            "seconds_low": span.low, "seconds_high": span.high, "source": span.source}
