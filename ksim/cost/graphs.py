"""CUDA graphs: in which a step is replayed, and to how many tokens it is padded for that."""

from bisect import bisect_left
from enum import Enum

from attrs import frozen

from ksim.flow.batch import Batch


class Launching(Enum):
    """How a step's kernels come to the GPU; the values are for reports."""

    FULL = "CUDA graph"
    PIECEWISE = "piecewise CUDA graphs"
    COMPILED = "compiled code"
    EAGER = "one by one"

    @property
    def graphs(self) -> bool:
        """Whether any of it is a graph's."""
        return self in (Launching.FULL, Launching.PIECEWISE)


@frozen
class Graphs:
    """The graphs that an engine captured, by vLLM's rules (v1/cudagraph_dispatcher.py, 0.22 to 0.33).

    A step in which every sequence has one new token is replayed whole, if there are `full` sizes that hold it, and
    any step where there are `mixed` ones; another one is replayed in pieces between the attention layers, if there are
    `piecewise` ones.  All are padded to the next size.  What no graph holds runs as torch.compile left it, or `eager`
    as the model says.
    """

    full: tuple[int, ...] = ()
    piecewise: tuple[int, ...] = ()
    mixed: tuple[int, ...] = ()
    eager: bool = False

    def of(self, batch: Batch) -> tuple[Launching, int]:
        """How *batch* is launched, and how many tokens it has then."""
        if not batch.chunks and (size := _fitting(self.full, batch.tokens)):
            return Launching.FULL, size
        if size := _fitting(self.mixed, batch.tokens):
            return Launching.FULL, size
        if size := _fitting(self.piecewise, batch.tokens):
            return Launching.PIECEWISE, size
        return (Launching.EAGER if self.eager else Launching.COMPILED), batch.tokens

    def padded(self, tokens: int) -> int:
        """To how many tokens any batch of *tokens* is padded; 0 if no graph holds it."""
        return _fitting(max(self.piecewise, self.mixed, self.full, key=len), tokens)


def _fitting(sizes: tuple[int, ...], tokens: int) -> int:
    """The least of *sizes* that holds *tokens*, 0 where none does."""
    place = bisect_left(sizes, tokens)
    return sizes[place] if place < len(sizes) else 0
