"""A clock and a cap for steps with prompt tokens, others for steps that only decode."""

from attrs import field, frozen

from ksim.cost.clock import Setting
from ksim.flow.batch import Batch
from ksim.flow.timeline import Timeline
from ksim.foundation.units import optional_quantity
from ksim.specs.hardware import Gpu

__all__ = ["PerPhase"]


def _quantity() -> float | None:
    asked: float | None = field(default=None, converter=optional_quantity)
    return asked


@frozen
class PerPhase:
    """Clocks `prefill` and `decode` (Hz), caps `prefill_cap` and `decode_cap` (W); what is left out asks for nothing.

    Decoding waits for memory, so that a lower clock costs it little time; changing the clock takes none here, and some
    tens of microseconds to milliseconds on a real GPU.
    """

    prefill: float | None = _quantity()
    decode: float | None = _quantity()
    prefill_cap: float | None = _quantity()
    decode_cap: float | None = _quantity()

    def setting(self, batch: Batch, timeline: Timeline, gpu: Gpu) -> Setting:
        return Setting(self.prefill_cap, self.prefill) if batch.chunks else Setting(self.decode_cap, self.decode)
