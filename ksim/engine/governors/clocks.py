"""Governors of the SM clock."""

from attrs import field, frozen, validators
from attrs.validators import gt, optional

from ksim.cost.energy import Setting
from ksim.flow.batch import Batch
from ksim.flow.steps import StepCost
from ksim.foundation.units import Hertz, Watts, optional_quantity
from ksim.specs.hardware import Gpu

__all__ = ["PerPhase", "Slack"]


def _asked() -> float | None:
    asked: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    return asked


@frozen
class PerPhase:
    """A clock and a cap for steps with prompt tokens, others for steps that only decode.

    Clocks `prefill` and `decode` (Hz), caps `prefill_cap` and `decode_cap` (W); what is left out asks for nothing.

    Decoding waits for memory, so that a lower clock costs it little time; changing the clock takes none here, and some
    tens of microseconds to milliseconds on a real GPU.
    """

    prefill: Hertz | None = _asked()
    decode: Hertz | None = _asked()
    prefill_cap: Watts | None = _asked()
    decode_cap: Watts | None = _asked()

    def setting(self, batch: Batch, step_cost: StepCost, gpu: Gpu) -> Setting:
        return Setting(self.prefill_cap, self.prefill) if batch.chunks else Setting(self.decode_cap, self.decode)


@frozen
class Slack:
    """The lowest clock that costs a step no more than a little time.

    A step may take `share` longer than at the boost clock.

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
