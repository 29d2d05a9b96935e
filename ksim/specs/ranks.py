"""How GPUs that are built alike differ in life: slow ones, and speeds, leakage and launches that are not the same."""

from math import inf

from attrs import field, frozen
from attrs.validators import ge, gt, in_, le, optional

from ksim.foundation.config import Choice
from ksim.foundation.units import Hertz, Seconds, Watts, optional_quantity, quantity
from ksim.specs.hardware import MOST

__all__ = ["RankSettings", "SlowGpu"]


@frozen
class SlowGpu:
    """One GPU that differs from the others of its kind, from `start` to `end`."""

    gpu: int = field(validator=(ge(0), le(MOST * 8)))
    """Its number in the fleet, whose GPUs are numbered node by node from 0 on. Unit: none. Example: 3."""
    speed: float = field(default=1.0, validator=gt(0))
    """The speed of all of its kernels, over that of the others. Unit: share."""
    clock: Hertz | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Highest SM clock that it reaches. Unit: Hz. Default: that of the others. Example: "1200 MHz"."""
    watts: Watts = field(default=0.0, converter=quantity)
    """What it draws beyond the others, as a hotter one leaks more. Unit: W."""
    delay: Seconds = field(default=0.0, converter=quantity, validator=ge(0))
    """Seconds by which its host launches each step later, as on a busy core. Unit: s."""
    link: float = field(default=1.0, validator=gt(0))
    """The bandwidth of its links, over that of the others'. Unit: share."""
    start: Seconds = field(default=0.0, converter=quantity, validator=ge(0))
    """From when on it differs. Unit: s."""
    end: Seconds | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Until when it differs. Unit: s. Default: for good. Example: "60 s"."""

    def __attrs_post_init__(self) -> None:
        if self.until <= self.start:
            raise ValueError(f"gpu {self.gpu} is slow until {self.until:g} s, and only from {self.start:g} s on; set"
                             " start below end")

    @property
    def until(self) -> float:
        """When it ends to differ; inf for never."""
        return inf if self.end is None else self.end


@frozen
class RankSettings:
    """How GPUs differ that are built alike; with `detail = "rank"`."""

    slow: tuple[SlowGpu, ...] = ()
    """GPUs that differ from the others. Default: none. Example: [{gpu = 3, speed = 0.9}]."""
    speed_spread: float = field(default=0.0, validator=(ge(0), le(0.5)))
    """Standard deviation of the GPUs' speeds, drawn once for each; their mean is 1. Unit: share."""
    power_spread: float = field(default=0.0, validator=(ge(0), le(0.5)))
    """Standard deviation of what GPUs always draw, drawn once for each, as chips leak more or less. Unit: share."""
    launch_jitter: Seconds = field(default=0.0, converter=quantity, validator=ge(0))
    """Mean of a random delay with which each GPU's host launches each step, exponentially distributed. Unit: s."""
    experts: str = field(default="drawn", validator=in_(("drawn", "even")))
    """Whether the rows of each expert are drawn layer by layer and step by step, or all ranks have the average."""

    processes: tuple[Choice, ...] = ()
    """Processes of your own, which listen to the run and interfere: generators that are given the environment, the
    fleet and the log (docs/plugins.md). Default: none. Example: ["interfere:throttle"]."""

    @property
    def differ(self) -> bool:
        """Whether GPUs differ in anything but the rows of their experts."""
        return bool(self.slow or self.speed_spread or self.power_spread or self.launch_jitter or self.processes)
