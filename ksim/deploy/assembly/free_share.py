"""TensorRT-LLM's share of the memory that weights leave free, as a share of all memory."""

from collections.abc import Mapping
from typing import Any

from ksim.simulation.deployment import Deployment
from ksim.simulation.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.sizing import RESERVED, memory


def utilization(engine: Mapping[str, Any], model: str, share: float) -> float:
    """The `gpu_memory_utilization` that leaves *share* of what weights and activations leave for the KV cache."""
    scenario = Scenario.of({"model": model, **engine, "workload": ANY_WORKLOAD}, "imported")
    deployment = Deployment.of(scenario)
    part = memory(deployment.model, deployment.shards[0], deployment.gpu, deployment.serve)
    taken = part.weights + part.activations + RESERVED
    whole = deployment.gpu.memory
    return round(min(1.0, max(0.01, (taken + share * max(0.0, whole - taken)) / whole)), 3)
