"""Power: what a GPU draws at rest and for each thing that it does, and how its clock gives way to a limit."""

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
    """How a GPU's SMs do at lower clocks, and how long they may draw more than the limit.

    `voltage` is that at SM clocks (Hz), over that at the boost clock; it is linear between them, and the lowest clock
    is the lowest that can be set.  A kernel bound by arithmetic takes 1 + `share` (boost clock / clock - 1) times as
    long as at the boost clock.  Of clocks below the one that is `known` nothing was measured, of none where there is
    none.  A GPU may draw more than its limit as long as it has `credit` (J), and earns that below it.  `measured` says
    of families of kernels whose measurements were made at a lower clock, how much of that time those bound by
    arithmetic take at the boost clock.
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
        """How many times as long as at the boost clock kernels bound by arithmetic take at *clock* (Hz)."""
        return 1.0 + self.share * (self.boost / clock - 1.0)

    def drawn(self, clock: float) -> float:
        """How many times the watts of the boost clock SMs draw at *clock* (Hz) while they do anything."""
        return self.saved(clock) * clock / self.boost

    def saved(self, clock: float) -> float:
        """How many times the joules of the boost clock SMs take at *clock* (Hz): the square of the voltage."""
        points = list(self.voltage.items())
        for (low, volts), (high, more) in pairwise(points):
            if clock <= high:
                return (volts + (more - volts) * (clock - low) / (high - low)) ** 2
        return points[-1][1] ** 2


@frozen
class PowerSettings:
    """What a scenario tells all GPUs to keep to."""

    cap: Watts | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Most power that a GPU may draw. Unit: W. Default: the limit of the board. Example: "500 W"."""
    clock: Hertz | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """Highest SM clock. Unit: Hz. Default: the boost clock. Example: "1500 MHz"."""
    governor: Choice | None = None
    """What chooses caps and clocks step by step, below `cap` and `clock`. Default: nothing does. Names:
    engine.governors. Example: {name = "slack", share = 0.05}."""

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.cap, self.clock, self.governor))


#: Where a GPU's power is from: measured on one; extrapolated from the one measured, with what is known of its memory;
#: estimated from its data sheet; or stated by whoever wrote its file.
BASES = ("measured", "extrapolated", "estimated", "stated")


@frozen
class Power:
    """Watts drawn all the time, and joules per action on top, at the boost clock.

    `idle` is the power of a GPU that waits, clocks up and memory powered; `sleep` that of one without work for long,
    clocks down.  `flop` is per FLOP of the number format, with tiles filled up to their full size; `hbm`, `l2` and
    `link` are per byte that memory reads or writes, that passes the L2 cache, and that is sent to a peer; one written
    to memory takes `write` more, one through a NIC `network`.  SMs draw `busy` while they work, which is all of a
    kernel's time but for the `start` of its launch.  `reach` is how far, relatively, the joules of 9 in 10 kernels
    that were not fitted may lie from those that follow.  Without `clocks`, the clock is the one that kernels were
    measured at.  `basis` is one of `BASES`.
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
