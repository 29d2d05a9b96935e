"""The footprint of a run: the power of what surrounds the GPUs, the emissions of a kWh, and the costs."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen
from attrs.validators import ge, le, optional

from ksim.foundation.units import OfEach, Seconds, Watts, optional_quantity, quantities, quantity

_BOUNDS: list[Any] = [ge(0), le(1e6)]


def _stated() -> float | None:
    rate: float | None = field(default=None, converter=optional_quantity, validator=optional(_BOUNDS))
    return rate


@frozen
class Grid:
    """The electricity of a region: gCO2e per kWh, averaged over a year."""

    name: str
    intensity: float = field(converter=quantity, validator=ge(0))
    year: int
    source: str


@frozen
class Footprint:
    """How a scenario turns energy into emissions and costs; what it leaves out is not counted."""

    grid: str | None = None
    """The electricity grid, for its carbon intensity. Default: no carbon is counted. Names: grids. Example: "de"."""
    carbon_intensity: float | None = _stated()
    """Carbon intensity, in place of a `grid`. Unit: gCO2e/kWh. Default: that of `grid`. Example: 350."""
    pue: float = field(default=1.0, converter=quantity, validator=(ge(1), le(100)))
    """Power usage effectiveness: the energy of the data centre over that of its machines. Unit: ratio."""
    host_watts: Watts = field(default=0.0, converter=quantity, validator=_BOUNDS)
    """Power of a node beside its GPUs and their NICs. Unit: W."""
    nic_watts: Watts = field(default=0.0, converter=quantity, validator=_BOUNDS)
    """Power of the NIC of a GPU. Unit: W."""
    price_per_kwh: float | None = _stated()
    """Price of electricity. Unit: $/kWh. Default: not counted. Example: 0.12."""
    price_per_gpu_hour: float | Mapping[str, float] | None = field(
        default=None, converter=quantities, validator=optional(OfEach(tuple(_BOUNDS))))
    """Price of a GPU, or a table of prices by GPU, such as {h100 = 2.5, h200 = 3.5}. Unit: $/h. Default: not counted.
    Example: 3.5."""
    sleep_after: Seconds | None = field(default=None, converter=optional_quantity, validator=optional(ge(0)))
    """Time without work after which a GPU sleeps. Unit: s. Default: GPUs stay awake. Example: "10 s"."""

    def __attrs_post_init__(self) -> None:
        if self.grid is not None and self.carbon_intensity is not None:
            raise ValueError("name a grid or state a carbon_intensity, not both")
