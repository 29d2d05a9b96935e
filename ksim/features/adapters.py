"""LoRA adapters: the slots on GPUs, where adapters are, and how long a step waits until its own are loaded.

vLLM's worker loads them before it launches the step (0.33, v1/worker/lora_model_runner_mixin.py): it reads the files of
those that are not in host memory, and launches the copies of their matrices, which the GPU makes before the step's
kernels.  The copies themselves are part of the step's costs (compute/adapters.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from ksim.compute.adapters import AdapterSlots, adapted, bytes_by_module, matrices, module_names
from ksim.compute.model import Model
from ksim.engine.engine import Engine, Process
from ksim.engine.event_engine import EventEngine
from ksim.engine.lookahead_engine import LookaheadEngine, Sent
from ksim.engine.loop_times import LoopTimes
from ksim.engine.ranks import LaunchTimes, Workers
from ksim.flow.batch import Batch
from ksim.flow.costs import StepSummary
from ksim.flow.events import AdapterLoaded
from ksim.flow.request import AdapterLoad
from ksim.flow.steps import StepCost
from ksim.foundation.errors import ConfigError
from ksim.network.routes import PCIE, Machines, SystemLinks
from ksim.scenario.defaults import Deployment
from ksim.scheduling.adapter_scheduler import adapting
from ksim.scheduling.adapter_store import AdapterStore
from ksim.scheduling.engine_loop import Turn
from ksim.scheduling.scheduler import Rules
from ksim.simulation.features import Extension, WiredFeature
from ksim.simulation.pool import EnginePlace, EnginePool
from ksim.specs.hardware import Gpu, System
from ksim.specs.settings import EngineSettings
from ksim.workload.replay import Workload

__all__ = ["FEATURE", "AdapterLoading", "adapter_store"]

#: Bytes/s that a node reads from its disk, where the system has no `[storage]`: an estimate for one NVMe disk.
DISK = 3e9
#: What a worker launches for each matrix: one kernel clears its place in the slot, one copies it there.
LAUNCHES = 2


def _check_modules(serve: EngineSettings, known: set[str], name: str) -> None:
    for place, module in enumerate(serve.lora_modules):
        if strangers := [target for target in module.target_modules or () if target not in known]:
            raise ConfigError(f"serve.lora_modules[{place}].target_modules",
                              f"{strangers[0]!r} is no module of {name} with slots for adapters; these are"
                              f" {', '.join(sorted(known))}")


def _check_asked(workload: Workload, serve: EngineSettings) -> None:
    """Raise ConfigError for a synthetic load that asks for adapters that *serve* does not have."""
    served = {name for module in serve.lora_modules for name in module.names}
    for key, load in workload.syntheses.items():
        if (asked := load.adapters) is None:
            continue
        if not serve.enable_lora:
            raise ConfigError(f"{key}.adapters", "asks for adapters, and serve.enable_lora is off; set it and"
                                                 " lora_modules, or leave them out")
        if strangers := [name for name in asked.names if name and name not in served]:
            entry = f'{{name = "{asked.name}", count = {asked.count}}}'
            raise ConfigError(f"{key}.adapters", f"asks for {strangers[0]!r}, and it is none of serve.lora_modules;"
                                                 f" add {entry} to them")


def adapter_store(serve: EngineSettings) -> AdapterStore:
    """Where the adapters of an engine are."""
    return AdapterStore(_adapters_of(serve), serve.max_loras, serve.max_cpu_loras or serve.max_loras)


def _adapters_of(serve: EngineSettings) -> Mapping[str, AdapterLoad]:
    """What there is to load of each adapter, by its name, in the order in which vLLM loads them when it starts."""
    return {name: AdapterLoad(name, module.rank, module.target_modules or ())
            for module in serve.lora_modules for name in module.names}


@frozen
class AdapterLoading:
    """How long a worker takes over adapters.

    An adapter has so many bytes for each rank of its own in each of `modules`.  They are read at `read_rate` bytes/s,
    and their copies take `launching` seconds to launch.
    """

    modules: Mapping[str, float]
    read_rate: float
    launching: float

    def size(self, load: AdapterLoad) -> float:
        """The bytes of an adapter."""
        return load.rank * sum(size for module, size in self.modules.items() if module in (load.modules or (module,)))

    def seconds(self, load: AdapterLoad) -> float:
        """How long it keeps the worker."""
        return self.launching + (self.size(load) / self.read_rate if load.read else 0.0)

    def total(self, loads: Sequence[AdapterLoad]) -> float:
        return sum(map(self.seconds, loads))

    def log(self, engine: Engine, loads: Sequence[AdapterLoad], time: float) -> None:
        """Log that *engine* has launched the copies of all *loads* at *time*."""
        for load in loads:
            engine.log.add(AdapterLoaded(time, engine.number, load.name, self.size(load), self.seconds(load),
                                         load.read))


@define(eq=False)
class AdapterLoopTimes(LoopTimes):
    """Times of turns, the next of which is prepared so many seconds `late`."""

    late: float = 0.0

    def ready(self, making: float, preparing: float, launch_seconds: float) -> tuple[float, float, float]:
        late, self.late = self.late, 0.0
        return super().ready(making, preparing + late / self.host.pace.at(self.now), launch_seconds)


@define(eq=False)
class AdapterWorkers(Workers):
    """Workers that load adapters before they prepare a step."""

    loading: AdapterLoading = field(kw_only=True)

    def launch(self, batch: Batch, step_costs: Sequence[StepCost], ready: float,
               pace: float = 1.0) -> list[LaunchTimes]:
        if batch.loads:
            free, late = self._free + [0.0] * (len(step_costs) - len(self._free)), self.loading.total(batch.loads)
            self._free = [max(ready, moment) + late for moment in free]
        return super().launch(batch, step_costs, ready, pace)


@define(eq=False, kw_only=True, slots=False)
class AdapterLookaheadEngine(LookaheadEngine):
    """An engine that goes ahead of the clock, and whose worker loads adapters."""

    loading: AdapterLoading
    _times: AdapterLoopTimes = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._times = AdapterLoopTimes(self.host, self.workers)

    def _send(self, batch: Batch, load: StepSummary, touched: int) -> Sent:
        if not batch.loads:
            return super()._send(batch, load, touched)
        self._times.late = self.loading.total(batch.loads)
        sent = super()._send(batch, load, touched)
        self.loading.log(self, batch.loads, sent[1])
        return sent


@define(eq=False, kw_only=True, slots=False)
class AdapterEventEngine(EventEngine):
    """An engine whose steps are events, and whose worker loads adapters."""

    loading: AdapterLoading

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._threads = AdapterWorkers(self.host.worker, loading=self.loading)

    def _send(self, turn: Turn) -> Process:
        yield from super()._send(turn)
        if turn.work.batch.loads:
            self.loading.log(self, turn.work.batch.loads, turn.work.prepared)


def _loading_of(deployment: Deployment) -> AdapterLoading:
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


class AdaptersFeature(WiredFeature):
    """An engine that serves LoRA adapters."""

    def check(self, model: Model, serve: EngineSettings, workload: Workload) -> None:
        _check_asked(workload, serve)

    def model(self, model: Model, serve: EngineSettings, gpu: Gpu, system: System) -> Model:
        """*model* with the slots that *serve* asks for; raises ConfigError for adapters that do not match it."""
        if not serve.enable_lora:
            return model
        slots = AdapterSlots(
            serve.max_loras, serve.max_lora_rank, SystemLinks(Machines(system, gpu)).by_kind[PCIE].capacity,
            serve.fully_sharded_loras, serve.lora_target_modules)
        changed = adapted(model, slots)
        _check_modules(serve, module_names(changed), model.name)
        return changed

    def unmeasured(self, workload: Workload) -> Sequence[str]:
        return ("shrink and expand of LoRA adapters",)

    def rules(self, deployment: Deployment) -> Sequence[Rules]:
        return adapting(adapter_store(deployment.serve))

    def extensions(self, deployment: Deployment) -> Sequence[Extension]:
        fields = {"loading": _loading_of(deployment)}
        return (Extension(LookaheadEngine, AdapterLookaheadEngine, fields),
                Extension(EventEngine, AdapterEventEngine, fields))

    def facts(self, pool: EnginePool, place: EnginePlace) -> Mapping[str, Any]:
        return {"max_loras": pool.deployment.serve.max_loras}


FEATURE = AdaptersFeature()
