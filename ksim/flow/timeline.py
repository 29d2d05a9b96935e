"""When one rank does what in one step: durations, not dates."""

from collections.abc import Iterable, Iterator, Sequence
from math import hypot, nan
from typing import Any

from attrs import define, evolve, field, frozen


@frozen
class Pace:
    """How a GPU did in a step: what is clocked took `time` times as long as at the boost clock, SMs took `energy` times
    the joules for what they did, and drew `power` times the watts while they did anything; `clock` is theirs on
    average, in Hz, nan where nothing is known of it."""

    time: float = 1.0
    energy: float = 1.0
    power: float = 1.0
    clock: float = field(default=nan, eq=False)

    def blended(self, other: "Pace", share: float) -> "Pace":
        """This for a *share* of a step, and the *other* for the rest of it."""
        rest = 1.0 - share
        time = share * self.time + rest * other.time
        return Pace(time, share * self.energy + rest * other.energy,
                    (share * self.time * self.power + rest * other.time * other.power) / time,
                    share * self.clock + rest * other.clock)


AT_BOOST = Pace()


@frozen
class Span:
    """A stretch of one rank's time: a kernel, or a collective that a group of ranks joins.

    Seconds, joules, FLOP and bytes are of one rank, at the boost clock; of the joules, `core_joules` are what SMs take
    for what they do, `busy_joules` while they do anything.  `bound` says what limits it: compute, memory, launch,
    communication.  `waves` is how often the kernel's thread blocks fill the GPU, `idle` the share of SMs without work
    in the last of these waves.  A span with a `group` ends together with its peers.
    `shape` is the kernel or collective itself, which prints as its shape;
    `launch` names the tile, or the algorithm and protocol; `source` who priced it.

    `eta` is its time over what the roofline allows.  `low` and `high` are the
    ends of the 90 % interval of `seconds`, nan where nobody knows;
    `extrapolated` says that the shape lies outside what was measured.

    Where kernels run side by side, `sms` are those that it has; 0 says that it has the GPU to itself.  One that ends
    before the span that follows, and began with it, takes the rank no `seconds`: those that it runs are `hidden`.
    """

    label: str
    family: str
    seconds: float
    joules: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    bound: str = "memory"
    waves: float = 0.0
    idle: float = 0.0
    group: str = ""
    shape: Any = ""
    launch: str = ""
    source: str = ""
    # nan is no equal of itself, and these follow from the rest.
    eta: float = field(default=nan, eq=False)
    low: float = field(default=nan, eq=False)
    high: float = field(default=nan, eq=False)
    extrapolated: bool = False
    core_joules: float = 0.0
    busy_joules: float = 0.0
    hidden: float = 0.0
    sms: int = 0

    @property
    def lasts(self) -> float:
        """Seconds from its start to its end."""
        return self.seconds + self.hidden

    @property
    def clocked(self) -> bool:
        """Whether the SM clock sets its pace."""
        return self.bound == "compute"

    def drawn(self, pace: Pace) -> float:
        """Joules at *pace*, beyond idle power."""
        busy = pace.power * (pace.time if self.clocked else 1.0) - 1.0
        return self.joules + (pace.energy - 1.0) * self.core_joules + busy * self.busy_joules


@frozen
class Lap:
    """Spans that run `repeat` times over; a number stands for that one of the timeline's `fills`."""

    spans: tuple[Span | int, ...]
    repeat: int = 1


@define
class Totals:
    """Sums over spans, each as often as it runs; `below` and `above` are, by family, how far its interval reaches."""

    seconds: float = 0.0
    joules: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    extrapolated: float = 0.0
    clocked: float = 0.0
    core_joules: float = 0.0
    busy_joules: float = 0.0
    clocked_joules: float = 0.0
    below: dict[str, float] = field(factory=dict)
    above: dict[str, float] = field(factory=dict)

    def add(self, span: Span, count: int) -> None:
        self.seconds += count * span.seconds
        self.joules += count * span.joules
        self.flops += count * span.flops
        self.bytes += count * span.bytes
        self.extrapolated += count * span.seconds * span.extrapolated
        self.clocked += count * span.seconds * span.clocked
        self.core_joules += count * span.core_joules
        self.busy_joules += count * span.busy_joules
        self.clocked_joules += count * span.busy_joules * span.clocked
        self.below[span.family] = self.below.get(span.family, 0.0) + count * (span.seconds - span.low)
        self.above[span.family] = self.above.get(span.family, 0.0) + count * (span.high - span.seconds)

    @classmethod
    def of(cls, spans: Iterable[tuple[Span, int]]) -> "Totals":
        totals = cls()
        for span, count in spans:
            totals.add(span, count)
        return totals

    def timeline(self, laps: Sequence[Lap], fills: tuple[Span, ...]) -> "Timeline":
        return Timeline(laps, fills, self.seconds, self.joules, self.flops, self.bytes,
                        self.seconds - hypot(*self.below.values()), self.seconds + hypot(*self.above.values()),
                        self.extrapolated, self.clocked, core_joules=self.core_joules,
                        busy_joules=self.busy_joules, clocked_joules=self.clocked_joules)


class Paced:
    """What a pace makes of seconds and joules: of one step, or of many in columns, at a pace each."""

    __slots__ = ()

    seconds: Any
    joules: Any
    clocked: Any
    core_joules: Any
    busy_joules: Any
    clocked_joules: Any
    launch_seconds: Any

    def paced(self, pace: Any) -> Any:
        """Seconds at *pace*."""
        return self.seconds + (pace.time - 1.0) * self.clocked

    def drawn(self, pace: Any) -> Any:
        """Joules at *pace*, beyond idle power."""
        busy = (pace.power - 1.0) * self.busy_joules + pace.power * (pace.time - 1.0) * self.clocked_joules
        return self.joules + (pace.energy - 1.0) * self.core_joules + busy


@frozen
class Timeline(Paced):
    """One rank's step, folded: laps shared by all steps of a shape, and the spans that fill their holes.

    Most kernels depend on how many tokens a step has, attention on whose they
    are; so `laps` is one object for many steps and `fills` is each step's own.
    The totals are those of the unfolded spans.  `low` and `high` are the ends
    of the 90 % interval of `seconds`: spans of one family err together, families
    apart from each other.  `extrapolated` counts the seconds outside what was measured, `clocked` those that
    the SM clock sets the pace of, `core_joules` and `busy_joules` the energy of the SMs, as in spans, and
    `clocked_joules` the latter of clocked spans.  Of all that, `launch` says how the host launches it, which takes
    `launch_seconds` of a CPU's time.
    """

    laps: Sequence[Lap]
    fills: tuple[Span, ...]
    seconds: float
    joules: float
    flops: float
    bytes: float
    low: float = field(default=nan, eq=False)
    high: float = field(default=nan, eq=False)
    extrapolated: float = 0.0
    clocked: float = 0.0
    launch: str = ""
    launch_seconds: float = 0.0
    core_joules: float = 0.0
    busy_joules: float = 0.0
    clocked_joules: float = 0.0

    def followed_by(self, span: Span) -> "Timeline":
        """The same, and *span* at its end; it takes just as long as it says."""
        return evolve(self, laps=(*self.laps, Lap((span,))), seconds=self.seconds + span.seconds,
                      low=self.low + span.seconds, high=self.high + span.seconds)

    @classmethod
    def of(cls, laps: Sequence[Lap], fills: Sequence[Span] = ()) -> "Timeline":
        """Fold *laps* and *fills*, adding up the totals."""
        blank = cls(tuple(laps), tuple(fills), 0.0, 0.0, 0.0, 0.0)
        return Totals.of(blank.counted()).timeline(blank.laps, blank.fills)

    def runs(self) -> list[int]:
        """How often each of the fills runs."""
        runs = [0] * len(self.fills)
        for lap in self.laps:
            for span in lap.spans:
                if isinstance(span, int):
                    runs[span] += lap.repeat
        return runs

    def counted(self) -> Iterator[tuple[Span, int]]:
        """Each distinct span with how often it runs."""
        for lap in self.laps:
            for span in lap.spans:
                yield (self.fills[span] if isinstance(span, int) else span), lap.repeat

    def __iter__(self) -> Iterator[Span]:
        """All spans in order, unfolded."""
        for lap in self.laps:
            spans = [self.fills[span] if isinstance(span, int) else span for span in lap.spans]
            for _ in range(lap.repeat):
                yield from spans
