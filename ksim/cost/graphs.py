"""CUDA graphs and launches: to how many tokens a step is padded, and how long a host takes to launch its kernels."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cached_property
from itertools import groupby

from attrs import frozen

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.basic import Gemm, GroupedGemm
from ksim.flow.batch import Batch
from ksim.foundation.units import DType
from ksim.specs.host import Inputs, Worker

__all__ = ["Graphs", "Launched", "Launches", "Launching", "SplittingOp"]


class Launching(Enum):
    """The way in which a step's kernels are launched; the values are for reports."""

    FULL = "CUDA graph"
    PIECEWISE = "piecewise CUDA graphs"
    COMPILED = "compiled code"
    EAGER = "one by one"

    #: Shapes of steps are looked up over and over; the hash of a member's name takes ten times as long.
    __hash__ = object.__hash__

    @property
    def graphs(self) -> bool:
        """Whether CUDA graphs launch some of the kernels."""
        return self in (Launching.FULL, Launching.PIECEWISE)


@frozen
class Graphs:
    """The CUDA graphs that an engine captured, by vLLM's rules (v1/cudagraph_dispatcher.py, 0.22 to 0.33).

    A step in which every sequence has `width` new tokens, which is one unless the engine speculates, is replayed whole
    if one of the `full` sizes holds it; any other step, if one of the `mixed` ones does.  Else it is replayed in pieces
    between the attention layers, if one of the `piecewise` sizes holds it.  Tokens are padded to the size.  A step that
    no graph holds runs the code that torch.compile made, or `eager`.
    """

    full: tuple[int, ...] = ()
    piecewise: tuple[int, ...] = ()
    mixed: tuple[int, ...] = ()
    eager: bool = False
    width: int = 1

    def of(self, batch: Batch) -> tuple[Launching, int]:
        """The way in which *batch* is launched, and its padded number of tokens."""
        if not batch.chunks and batch.width == self.width and (size := _fitting(self.full, batch.tokens)):
            return Launching.FULL, size
        if size := _fitting(self.mixed, batch.tokens):
            return Launching.FULL, size
        if size := _fitting(self.piecewise, batch.tokens):
            return Launching.PIECEWISE, size
        return (Launching.EAGER if self.eager else Launching.COMPILED), batch.tokens

    def padded(self, tokens: int) -> int:
        """The size to which any batch of *tokens* is padded; 0 if no graph holds it."""
        return _fitting(self._longest, tokens)

    @cached_property
    def _longest(self) -> tuple[int, ...]:
        return max(self.piecewise, self.mixed, self.full, key=len)


def _fitting(sizes: tuple[int, ...], tokens: int) -> int:
    """The least of *sizes* that holds *tokens*, 0 where none does."""
    place = bisect_left(sizes, tokens)
    return sizes[place] if place < len(sizes) else 0


class SplittingOp(Enum):
    """What depends on the batch and is in no piece of a graph, as vLLM's `splitting_ops`.

    That is attention, and what prompts do in layers that keep a state.
    """

    ATTENTION = "attention"
    STATES = "states"


#: What is launched, and whether it is hidden beside another kernel.
Launched = tuple[Kernel | Collective, bool] | SplittingOp


@frozen
class Launches:
    """The numbers of launches of a step: all `kernels`, `grouped` products, and `attention`.

    Attention stands between the pieces of a graph; successive launches of it are one operation, as in vLLM.  `hidden`
    launches run beside others, and so do the gaps before them.  In so many layers prompts update `states`.  `shapes`
    are the columns and rows of weights in NVFP4.
    """

    kernels: int
    grouped: int
    attention: int
    hidden: int = 0
    states: int = 0
    shapes: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def of(cls, blocks: Iterable[tuple[Sequence[Launched], int]]) -> "Launches":
        """The launches of *blocks*, each with how often it runs."""
        kernels = grouped = attention = hidden = states = 0
        shapes: set[tuple[int, int]] = set()
        for block, repeat in blocks:
            kernels += repeat * len(block)
            splits = groupby(isinstance(launch, SplittingOp) for launch in block)
            attention += repeat * sum(split for split, _ in splits)
            states += repeat * block.count(SplittingOp.STATES)
            fixed = [launch for launch in block if not isinstance(launch, SplittingOp)]
            grouped += repeat * sum(isinstance(kernel, GroupedGemm) for kernel, _ in fixed)
            hidden += repeat * sum(beside for _, beside in fixed)
            shapes |= {(kernel.n, kernel.k) for kernel, _ in fixed
                       if isinstance(kernel, Gemm) and kernel.weights is DType.NVFP4}
        return cls(kernels, grouped, attention, hidden, states, frozenset(shapes))

    def __add__(self, other: "Launches") -> "Launches":
        return Launches(self.kernels + other.kernels, self.grouped + other.grouped,
                        self.attention + other.attention, self.hidden + other.hidden, self.states + other.states,
                        self.shapes | other.shapes)

    def seconds(self, how: Launching, costs: Worker) -> float:
        """CPU seconds to launch them."""
        match how:
            case Launching.FULL:
                return costs.replay
            case Launching.PIECEWISE:
                return costs.replay + costs.piece * self.attention + costs.states * self.states
            case _:
                each = costs.eager if how is Launching.EAGER else costs.compiled
                return (each * self.kernels + costs.experts * self.grouped + costs.states * self.states
                        + costs.plan * len(self.shapes))

    def gaps(self, how: Launching, costs: Inputs) -> float:
        """Seconds that the GPU waits between launches, in all."""
        match how:
            case Launching.FULL:
                return 0.0
            case Launching.PIECEWISE:
                return 2 * costs.gap * self.attention  # before attention, and after it
            case _:
                return costs.gap * (self.kernels - self.hidden)
