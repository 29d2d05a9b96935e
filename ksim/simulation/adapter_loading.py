"""The LoRA adapters of a deployment by name, and how its engines load them."""

from collections.abc import Mapping

from ksim.compute.adapters import bytes_by_module, matrices
from ksim.engine.adapter_engines import AdapterLoading
from ksim.flow.adapters import AdapterLoad
from ksim.scheduling.adapter_store import AdapterStore
from ksim.simulation.deployment import Deployment
from ksim.specs.hardware import System
from ksim.specs.settings import EngineSettings

__all__ = ["adapter_store", "adapters_of", "loading_of"]

#: Bytes/s that a node reads from its disk, where the system has no `[storage]`: an estimate for one NVMe disk.
DISK = 3e9
#: What a worker launches for each matrix: one kernel clears its place in the slot, one copies it there.
LAUNCHES = 2


def adapter_store(serve: EngineSettings) -> AdapterStore | None:
    """Where the adapters of an engine are, None without `enable_lora`."""
    if not serve.enable_lora:
        return None
    return AdapterStore(adapters_of(serve), serve.max_loras, serve.max_cpu_loras or serve.max_loras)


def adapters_of(serve: EngineSettings) -> Mapping[str, AdapterLoad]:
    """What there is to load of each adapter, by its name, in the order in which vLLM loads them when it starts."""
    return {name: AdapterLoad(name, module.rank, module.target_modules or ())
            for module in serve.lora_modules for name in module.names}


def loading_of(deployment: Deployment) -> AdapterLoading:
    """How long a worker of *deployment* takes over adapters; each has the matrices of its own stage."""
    launched = LAUNCHES * matrices(deployment.model) / deployment.serve.pipeline_parallel_size
    return AdapterLoading(bytes_by_module(deployment.model), _disk_rate(deployment.system),
                          launched * deployment.host.worker.eager)


def _disk_rate(system: System) -> float:
    """Bytes/s at which a node of *system* reads adapters that are not in its memory."""
    storage = system.storage
    if storage is None:
        return DISK
    whole = storage.servers * storage.bandwidth
    return min(whole, storage.node or whole)
