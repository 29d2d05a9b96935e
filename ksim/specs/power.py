"""Power: what a GPU draws when idle and for each action, and how its clock follows a power limit."""

from collections.abc import Mapping
from itertools import pairwise

from attrs import field, frozen
from attrs.validators import deep_mapping, ge, gt, in_, instance_of, le, min_len, optional

from ksim.foundation.config import Choice
from ksim.foundation.units import DType, Hertz, Watts, by_dtype, optional_quantity, quantity


def _by_clock(table: Mapping[str | float, float]) -> dict[float, float]:
    if not isinstance(table, Mapping):
        raise ValueError(f"expected a table of voltages by clock, not {table!r}")
    return dict(sorted((quantity(clock), float(volts)) for clock, volts in table.items()))


@frozen
class Clocks:
    """How a GPU's SMs behave at lower clocks, and for how long they may exceed the power limit.

    `voltage` maps SM clocks (Hz) to the voltage relative to that at the boost clock; between them it is linear.  The
    lowest clock in it is the lowest that can be set.  A compute-bound kernel takes 1 + `share` (boost clock / clock -
    1) times as long as at the boost clock.  Nothing was measured below the clock `known`, or at any lower clock if it
    is None.  A GPU may exceed its limit as long as it has `credit` (J), and earns credit below the limit.  `measured`
    is about families of kernels that were measured at a lower clock: which share of the measured time compute-bound
    kernels take at the boost clock.
    """

    voltage: Mapping[float, float] = field(
        converter=_by_clock, validator=(min_len(2), deep_mapping(gt(0), (gt(0), le(1)))))
    share: float = field(validator=(gt(0), le(1)))
    source: str
    known: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    credit: float = field(default=0.0, converter=quantity, validator=ge(0))
    measured: Mapping[str, float] = field(factory=dict)

    @property
    def least(self) -> float:
        """The lowest clock, in Hz."""
        return min(self.voltage)

    @property
    def boost(self) -> float:
        """The highest clock, in Hz."""
        return max(self.voltage)

    def slowed(self, clock: float) -> float:
        """The factor by which compute-bound kernels take longer at *clock* (Hz) than at the boost clock."""
        return 1.0 + self.share * (self.boost / clock - 1.0)

    def drawn(self, clock: float) -> float:
        """SM power at *clock* (Hz), relative to that at the boost clock."""
        return self.saved(clock) * clock / self.boost

    def saved(self, clock: float) -> float:
        """SM energy per action at *clock* (Hz), relative to that at the boost clock: the square of the voltage."""
        points = list(self.voltage.items())
        for (low, volts), (high, more) in pairwise(points):
            if clock <= high:
                return (volts + (more - volts) * (clock - low) / (high - low)) ** 2
        return points[-1][1] ** 2


@frozen
class PowerSettings:
    """The power settings that all GPUs of a scenario keep to."""

    cap: Watts | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Most power that a GPU may draw. Unit: W. Default: the limit of the board. Example: "500 W"."""
    clock: Hertz | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Highest SM clock. Unit: Hz. Default: the boost clock. Example: "1500 MHz"."""
    governor: Choice | None = None
    """The governor, which chooses caps and clocks step by step, below `cap` and `clock`. Default: none. Names:
    engine.governors. Example: {name = "slack", share = 0.05}."""

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.cap, self.clock, self.governor))


#: The source of a GPU's power: measured on it; extrapolated from the GPU that was measured and from its kind of memory;
#: estimated from its data sheet; or stated in its file.
BASES = ("measured", "extrapolated", "estimated", "stated")


@frozen
class Power:
    """Watts that a GPU always draws, and joules per action on top, at the boost clock.

    `idle` is the power of a waiting GPU with clocks up and memory powered; `sleep` is that of a GPU that has been
    without work for long, with clocks down.  `flop` has joules per FLOP by number format, with tiles filled up to
    their full size.  `hbm`, `l2` and `link` are joules per byte: read or written in memory, moved through the L2
    cache, sent to a peer.  A byte written to memory takes `write` more, and a byte through a NIC takes `network`.
    SMs draw `busy` watts while they work, which is all of a kernel's time except the `start` of its launch.  `reach`
    is the largest relative error of the joules of 9 in 10 kernels outside the fit.  Without `clocks`, the clock is
    the one at which kernels were measured.  `basis` is one of `BASES`.
    """

    idle: float = field(converter=quantity, validator=ge(0))
    limit: float = field(converter=quantity, validator=gt(0))
    flop: Mapping[DType, float] = field(converter=by_dtype, validator=deep_mapping(instance_of(DType), ge(0)))
    hbm: float = field(converter=quantity, validator=ge(0))
    link: float = field(converter=quantity, validator=ge(0))
    source: str
    write: float = field(default=0.0, converter=quantity, validator=ge(0))
    l2: float = field(default=0.0, converter=quantity, validator=ge(0))
    network: float = field(default=0.0, converter=quantity, validator=ge(0))
    busy: float = field(default=0.0, converter=quantity, validator=ge(0))
    start: float = field(default=0.0, converter=quantity, validator=ge(0))
    sleep: float | None = field(default=None, converter=optional_quantity, validator=optional(ge(0)))
    reach: float = field(default=0.0, validator=ge(0))
    clocks: Clocks | None = None
    basis: str = field(default="stated", validator=in_(BASES))
