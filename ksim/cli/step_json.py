"""What `ksim step` knows of a step, as records: its kernels and its totals."""

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ksim.flow.batch import Batch
    from ksim.flow.kernels import KernelCost
    from ksim.flow.steps import StepCost
    from ksim.scenario.defaults import Deployment


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
