"""Launches: what it takes a host to bring a step's kernels to a GPU, and the GPU to wait between them."""

from collections.abc import Sequence
from itertools import groupby

from attrs import frozen

from ksim.compute.kernels.grouped_gemm import GroupedGemm
from ksim.cost.graphs import Launching
from ksim.flow.timeline import Lap, Span
from ksim.specs.host import Inputs, Worker


@frozen
class Launches:
    """How many launches of all its kernels, of grouped products and of attention a step has.

    What waits for its batch is attention, which stands between the pieces of a graph: as one operation where launches
    of it follow on each other, as in vLLM.  Those that are `hidden` run beside others, and so do the gaps before them.
    """

    kernels: int
    grouped: int
    attention: int
    hidden: int = 0

    @classmethod
    def of(cls, laps: Sequence[Lap]) -> "Launches":
        waiting = [[isinstance(span, int) for span in lap.spans] for lap in laps]
        spans = [(lap.repeat, span) for lap in laps for span in lap.spans if isinstance(span, Span)]
        return cls(
            kernels=sum(lap.repeat * len(lap.spans) for lap in laps),
            grouped=sum(repeat * isinstance(span.shape, GroupedGemm) for repeat, span in spans),
            attention=sum(lap.repeat * sum(waits for waits, _ in groupby(each))
                          for lap, each in zip(laps, waiting, strict=True)),
            hidden=sum(repeat * bool(span.hidden) for repeat, span in spans),
        )

    def __add__(self, other: "Launches") -> "Launches":
        return Launches(self.kernels + other.kernels, self.grouped + other.grouped,
                        self.attention + other.attention, self.hidden + other.hidden)

    def seconds(self, how: Launching, costs: Worker) -> float:
        """How long a CPU takes over them."""
        match how:
            case Launching.FULL:
                return costs.replay
            case Launching.PIECEWISE:
                return costs.replay + costs.piece * self.attention
            case _:
                each = costs.eager if how is Launching.EAGER else costs.compiled
                return each * self.kernels + costs.experts * self.grouped

    def gaps(self, how: Launching, costs: Inputs) -> float:
        """How long the GPU takes between one launch and the next, in all."""
        match how:
            case Launching.FULL:
                return 0.0
            case Launching.PIECEWISE:
                return 2 * costs.gap * self.attention  # before attention, and after it
            case _:
                return costs.gap * (self.kernels - self.hidden)
