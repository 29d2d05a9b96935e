"""Launches: what it takes a host to bring a step's kernels to a GPU, and the GPU to wait between them."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from attrs import frozen

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.grouped_gemm import GroupedGemm
from ksim.cost.graphs import Launching
from ksim.specs.host import Inputs, Worker

__all__ = ["Launched", "Launches"]

#: What is launched, and whether it is hidden beside another kernel; None stands for what depends on the batch.
Launched = tuple[Kernel | Collective, bool] | None


@frozen
class Launches:
    """How many launches of all its kernels, of grouped products and of attention a step has.

    What depends on the batch is attention, which stands between the pieces of a graph: as one operation where launches
    of it follow on each other, as in vLLM.  Those that are `hidden` run beside others, and so do the gaps before them.
    """

    kernels: int
    grouped: int
    attention: int
    hidden: int = 0

    @classmethod
    def of(cls, blocks: Iterable[tuple[Sequence[Launched], int]]) -> "Launches":
        """Those of *blocks*, each of which runs so often."""
        kernels = grouped = attention = hidden = 0
        for block, repeat in blocks:
            kernels += repeat * len(block)
            grouped += repeat * sum(isinstance(launch[0], GroupedGemm) for launch in block if launch)
            attention += repeat * sum(waits for waits, _ in groupby(launch is None for launch in block))
            hidden += repeat * sum(launch[1] for launch in block if launch)
        return cls(kernels, grouped, attention, hidden)

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
