"""The lowest clock that costs a step no more than a little time."""

from attrs import field, frozen, validators

from ksim.cost.energy import Setting
from ksim.flow.batch import Batch
from ksim.flow.steps import StepCost
from ksim.specs.hardware import Gpu

__all__ = ["Slack"]


@frozen
class Slack:
    """A step may take `share` longer than at the boost clock.

    Of a step that waits for memory, clocks fall far, but not below those that were measured: at the lowest, SMs and
    caches are too slow to keep memory busy.
    """

    share: float = field(default=0.02, validator=(validators.ge(0), validators.lt(1)))

    def setting(self, batch: Batch, step_cost: StepCost, gpu: Gpu) -> Setting:
        clocks = gpu.power.clocks
        if clocks is None:
            return Setting()
        allowed = self.share * step_cost.seconds / step_cost.compute_bound if step_cost.compute_bound else float("inf")
        clock = clocks.boost / (1.0 + allowed / clocks.share)
        return Setting(clock=max(clocks.least, clocks.known or 0.0, clock))
