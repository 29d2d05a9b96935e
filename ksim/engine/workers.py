"""Workers: the host's threads that prepare a step's inputs and launch its kernels, one for each pipeline stage."""

from collections.abc import Sequence

from attrs import define, field, frozen

from ksim.flow.batch import Batch
from ksim.flow.steps import StepCost
from ksim.specs.host import Worker


@frozen
class LaunchTimes:
    """When a step's inputs are prepared, and when the last of its kernels is launched."""

    prepared: float
    launched: float


@define(eq=False)
class Workers:
    """Each works off the steps in order, one at a time."""

    costs: Worker
    _free: list[float] = field(factory=list, init=False)

    @property
    def free(self) -> float:
        """When the worker of the first stage has worked off all steps so far."""
        return self._free[0] if self._free else 0.0

    def launch(self, batch: Batch, step_costs: Sequence[StepCost], ready: float) -> list[LaunchTimes]:
        """Have every stage's worker prepare and launch its part of a step that is known to them at *ready*."""
        self._free += [0.0] * (len(step_costs) - len(self._free))
        prepare = self.costs.preparing(batch.sequences)
        launches = []
        for stage, step_cost in enumerate(step_costs):
            prepared = max(ready, self._free[stage]) + prepare
            self._free[stage] = prepared + step_cost.launch_seconds
            launches.append(LaunchTimes(prepared, self._free[stage]))
        return launches
