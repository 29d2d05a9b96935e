"""What all steps of so many tokens and samples share, and their totals once their holes are filled."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from attrs import define, fields, frozen

from ksim.compute.graph import BatchDependent, Op
from ksim.cost.graphs import Launching
from ksim.cost.launches import Launches
from ksim.flow.load import Load
from ksim.flow.timeline import Lap, Span, Timeline, Totals

#: Tokens, rows of logits, how they are launched, the tokens of all data ranks, and what the
#: batch has nothing for.
Shape = tuple[int, int, Launching, int | None, frozenset[Op]]
#: A label, a layer that waits for its batch, and how often it runs.
Hole = tuple[str, BatchDependent, int]


@frozen(eq=False)
class Part:
    """A stretch of a step that does not depend on the rest: laps with holes, and what they come to without those."""

    laps: Sequence[Lap]
    holes: tuple[Hole, ...]
    totals: Totals
    launches: Launches

    @classmethod
    def of(cls, laps: Sequence[Lap], holes: tuple[Hole, ...] = ()) -> "Part":
        totals = Totals.of((span, lap.repeat) for lap in laps for span in lap.spans if isinstance(span, Span))
        return cls(tuple(laps), holes, totals, Launches.of(laps))


@define(eq=False)
class Sums:
    """The totals of a step, or columns of many; `below` and `above` are the squares of how far its interval reaches."""

    seconds: Any
    joules: Any
    flops: Any
    bytes: Any
    extrapolated: Any
    clocked: Any
    core_joules: Any
    busy_joules: Any
    clocked_joules: Any
    below: Any
    above: Any

    @classmethod
    def of(cls, one: Totals, other: Totals) -> "Sums":
        """Of two parts of a step; kernels of one family err alike in both."""
        reach = [sum((mine + theirs.get(family, 0.0))**2 for family, mine in own.items())
                 + sum(far**2 for family, far in theirs.items() if family not in own)
                 for own, theirs in ((one.below, other.below), (one.above, other.above))]
        return cls(*(getattr(one, name) + getattr(other, name) for name in _ADDED), *reach)

    def filled(self, fills: Sequence[tuple[Any, int]], inputs: Any) -> "Sums":
        """With spans, or columns of them, that run so often, and seconds for a step's *inputs*.

        Attention is a family, which errs alike in all layers.
        """
        seconds, energy, flops, moved = self.seconds + inputs, self.joules, self.flops, self.bytes
        below, above, outside, clocked = 0.0, 0.0, self.extrapolated, self.clocked
        core, busy, paced = self.core_joules, self.busy_joules, self.clocked_joules
        for span, count in fills:
            each, watched = count * span.seconds, count * span.busy_joules
            seconds = seconds + each
            energy = energy + count * span.joules
            flops = flops + count * span.flops
            moved = moved + count * span.bytes
            below = below + (each - count * span.low)
            above = above + (count * span.high - each)
            outside = outside + each * span.extrapolated
            clocked = clocked + each * span.clocked
            core = core + count * span.core_joules
            busy = busy + watched
            paced = paced + watched * span.clocked
        return Sums(seconds, energy, flops, moved, outside, clocked, core, busy, paced, self.below + below * below,
                    self.above + above * above)

    @property
    def low(self) -> Any:
        return self.seconds - self.below**0.5

    @property
    def high(self) -> Any:
        return self.seconds + self.above**0.5


_ADDED = tuple(each.name for each in fields(Sums))[:-2]


@frozen(eq=False)
class Plan:
    """Laps of a step, and what is its own: its inputs, and kernels such as attention, which fill the holes.

    `sums` are of all that is known before.
    """

    shape: Shape
    laps: Sequence[Lap]
    holes: tuple[Hole, ...]
    sums: Sums
    launch: str
    launch_seconds: float

    @cached_property
    def load(self) -> Load:
        """What all that is known before asks of the clock."""
        return Load.of(self.sums, self.launch_seconds)

    def timeline(self, fills: tuple[Span, ...]) -> Timeline:
        """The step whose holes *fills* fill, the last of which are its inputs."""
        sums = self.sums.filled([(span, count) for span, (_, _, count) in zip(fills, self.holes, strict=False)],
                                fills[-1].seconds)
        return Timeline(self.laps, fills, sums.seconds, sums.joules, sums.flops, sums.bytes, sums.low, sums.high,
                        sums.extrapolated, sums.clocked, self.launch, self.launch_seconds,
                        sums.core_joules, sums.busy_joules, sums.clocked_joules)
