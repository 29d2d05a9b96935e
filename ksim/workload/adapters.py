"""Which LoRA adapter each synthetic request asks for."""

from collections.abc import Sequence

import numpy as np
from attrs import field, frozen
from attrs.validators import ge, gt, le

#: More than any server holds.
MOST = 10**6


@frozen
class Adapters:
    """`count` adapters, called `name`-0, `name`-1 and so on, as popular as Zipf's law says.

    Adapter k is asked for in proportion to 1 / (k + 1)^`exponent`; 0 makes all equally popular.  A share `base` of the
    requests asks for no adapter.
    """

    count: int = field(validator=(gt(0), le(MOST)))
    """Number of adapters. Unit: adapters."""
    exponent: float = field(default=0.0, validator=(ge(0), le(10)))
    """Exponent of Zipf's law; 0 makes all adapters equally popular. Unit: none."""
    base: float = field(default=0.0, validator=(ge(0), le(1)))
    """Share of requests that ask for the base model. Unit: share."""
    name: str = "adapter"
    """What adapters are called, before their number: as an entry of `serve.lora_modules` with a `count`."""

    @property
    def shares(self) -> Sequence[float]:
        """How likely each adapter is, and last of all the base model."""
        weights = np.arange(1, self.count + 1, dtype=np.float64) ** -self.exponent
        return [*((1 - self.base) * weights / weights.sum()).tolist(), self.base]

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order of `shares`."""
        return (*(f"{self.name}-{number}" for number in range(self.count)), "")
