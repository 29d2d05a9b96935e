"""When one rank does what in one step: durations, not dates."""

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen


@frozen
class Span:
    """A stretch of one rank's time: a kernel, or a collective that a group of ranks joins.

    Seconds, joules, FLOP and bytes are of one rank.  `bound` says what limits
    it: compute, memory, launch, communication.  `waves` is how often the
    kernel's thread blocks fill the GPU, `idle` the share of SMs without work in
    the last of these waves.  A span with a `group` ends together with its peers.
    `shape` is the kernel or collective itself, which prints as its shape;
    `launch` names the tile, or the algorithm and protocol; `source` who priced it.
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


@frozen
class Lap:
    """Spans that run `repeat` times over; a number stands for that one of the timeline's `fills`."""

    spans: tuple[Span | int, ...]
    repeat: int = 1


@frozen
class Timeline:
    """One rank's step, folded: laps shared by all steps of a shape, and the spans that fill their holes.

    Most kernels depend on how many tokens a step has, attention on whose they
    are; so `laps` is one object for many steps and `fills` is each step's own.
    The totals are those of the unfolded spans.
    """

    laps: tuple[Lap, ...]
    fills: tuple[Span, ...]
    seconds: float
    joules: float
    flops: float
    bytes: float

    @classmethod
    def of(cls, laps: Sequence[Lap], fills: Sequence[Span] = ()) -> "Timeline":
        """Fold *laps* and *fills*, adding up the totals."""
        blank = cls(tuple(laps), tuple(fills), 0.0, 0.0, 0.0, 0.0)
        totals = [0.0] * 4
        for span, count in blank.counted():
            for i, amount in enumerate((span.seconds, span.joules, span.flops, span.bytes)):
                totals[i] += count * amount
        return cls(blank.laps, blank.fills, *totals)

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
