"""The kinds of engines, and which of them a deployment has: each with LoRA adapters, too.

With adapters, a step waits until its worker has loaded those that it needs.
vLLM's worker loads them before it launches the step (v1/worker/lora_model_runner_mixin.py): it reads the files of those
that are not in host memory, and launches the copies of their matrices, which the GPU makes before the step's kernels.
The copies themselves are part of the step's costs (compute/adapters.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from ksim.engine.connected_engine import ConnectedEngine
from ksim.engine.engine import Engine, Process
from ksim.engine.event_engine import CollectiveFlows, EventEngine
from ksim.engine.governors import Supervised
from ksim.engine.lookahead_engine import LookaheadEngine, Sent
from ksim.engine.loop_times import LoopTimes
from ksim.engine.ranks import DataParallelGroup, LaunchTimes, Stages, WholeSteps, Workers
from ksim.flow.batch import Batch
from ksim.flow.costs import StepSummary
from ksim.flow.events import AdapterLoaded
from ksim.flow.request import AdapterLoad
from ksim.flow.steps import StepCost
from ksim.scheduling.engine_loop import Turn

__all__ = ["AdapterLoading", "engine_of"]


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
        return super().ready(making, preparing + late, launch_seconds)


@define(eq=False)
class AdapterWorkers(Workers):
    """Workers that load adapters before they prepare a step."""

    loading: AdapterLoading = field(kw_only=True)

    def launch(self, batch: Batch, step_costs: Sequence[StepCost], ready: float) -> list[LaunchTimes]:
        if batch.loads:
            free, late = self._free + [0.0] * (len(step_costs) - len(self._free)), self.loading.total(batch.loads)
            self._free = [max(ready, moment) + late for moment in free]
        return super().launch(batch, step_costs, ready)


@define(eq=False, kw_only=True, slots=False)
class AdapterLookaheadEngine(LookaheadEngine):
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
class AdapterConnectedEngine(AdapterLookaheadEngine, ConnectedEngine):
    """The same where KV is sent and taken."""


@define(eq=False, kw_only=True, slots=False)
class AdapterEventEngine(EventEngine):
    loading: AdapterLoading

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._threads = AdapterWorkers(self.host.worker, loading=self.loading)

    def _send(self, turn: Turn) -> Process:
        yield from super()._send(turn)
        if turn.work.batch.loads:
            self.loading.log(self, turn.work.batch.loads, turn.work.prepared)


#: The engine with adapters in the place of one without.
_WITH_ADAPTERS: Mapping[type[Engine], Callable[..., Engine]] = {
    EventEngine: AdapterEventEngine, LookaheadEngine: AdapterLookaheadEngine, ConnectedEngine: AdapterConnectedEngine}


def engine_of(stages: Stages, group: DataParallelGroup | None, collective_flows: CollectiveFlows | None, *, skips: bool,
              watched: bool, loading: AdapterLoading | None, **common: Any) -> Engine:
    """An engine of the kind that its parts need; what all kinds take is *common*.

    It goes ahead of the clock if it *skips*, and nothing else decides when its steps end: no other stage, no rank of a
    *group*, no governor.  A router may look at one that is *watched*.  With *loading*, it loads LoRA adapters.
    """
    kind: type[Engine] = EventEngine
    if collective_flows and isinstance(stages, WholeSteps):
        collective_flows.enlist(stages)
        common |= {"stages": stages, "group": group, "collective_flows": collective_flows}
    elif skips and isinstance(stages, WholeSteps) and _may_skip(stages, group, common["governor"]):
        kind = ConnectedEngine if common["connector"] else LookaheadEngine
        common |= {"clock": stages.clocks[0] if stages.clocks else None, "watched": watched}
    else:
        common |= {"stages": stages, "group": group}
    return kind(**common) if loading is None else _WITH_ADAPTERS[kind](**common, loading=loading)


def _may_skip(stages: WholeSteps, group: DataParallelGroup | None, governor: Supervised | None) -> bool:
    return stages.stages == 1 and group is None and (governor is None or governor.governor is None)
