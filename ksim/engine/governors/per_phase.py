"""A clock and a cap for steps with prompt tokens, others for steps that only decode."""

from attrs import field, frozen
from attrs.validators import gt, optional

from ksim.cost.energy import Setting
from ksim.flow.batch import Batch
from ksim.flow.steps import StepCost
from ksim.foundation.units import Hertz, Watts, optional_quantity
from ksim.specs.hardware import Gpu

__all__ = ["PerPhase"]


def _asked() -> float | None:
    asked: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    return asked


@frozen
class PerPhase:
    """Clocks `prefill` and `decode` (Hz), caps `prefill_cap` and `decode_cap` (W); what is left out asks for nothing.

    Decoding waits for memory, so that a lower clock costs it little time; changing the clock takes none here, and some
    tens of microseconds to milliseconds on a real GPU.
    """

    prefill: Hertz | None = _asked()
    decode: Hertz | None = _asked()
    prefill_cap: Watts | None = _asked()
    decode_cap: Watts | None = _asked()

    def setting(self, batch: Batch, step_cost: StepCost, gpu: Gpu) -> Setting:
        return Setting(self.prefill_cap, self.prefill) if batch.chunks else Setting(self.decode_cap, self.decode)
