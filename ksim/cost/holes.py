"""What fills the holes of plans, for many batches at once: attention, and whatever else waits for its batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ksim.compute.graph import Op
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.cost.plan import Hole
from ksim.cost.spans import Pricer
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.flow.bounds import LAUNCH
from ksim.flow.filled import Filled, Ints
from ksim.oracles import estimates
from ksim.specs.host import Inputs

#: For each hole, the kernel of each batch, None where a batch has nothing for it.
Bound = Mapping[Hole, Sequence[Kernel | None]]


def bind(holes: Sequence[Hole], batches: Sequence[Batch]) -> Bound:
    """The kernels of *batches* in *holes*, but for attention, which is priced as a sweep and no batch is without."""
    return {hole: [hole[1].over(batch) for batch in batches] for hole in holes
            if not isinstance(hole[1], AttentionLayer)}


def lacking(bound: Bound, batches: int) -> list[frozenset[Op]]:
    """What each of so many batches has nothing for."""
    if not bound:
        return [frozenset()] * batches
    patterns: dict[tuple[bool, ...], frozenset[Op]] = {}
    found = []
    for row in zip(*bound.values(), strict=True):
        pattern = tuple(kernel is None for kernel in row)
        if pattern not in patterns:
            patterns[pattern] = frozenset(Op(label, layer) for (label, layer, _), kernel
                                          in zip(bound, row, strict=True) if kernel is None)
        found.append(patterns[pattern])
    return found


def fill(holes: Mapping[Hole, Ints], bound: Bound, batches: Batches, pricer: Pricer) -> list[Filled]:
    """What fills each of *holes* in those of *batches* that have it; kernels that are *bound* are asked about once."""
    asked = {(hole[0], kernel): None for hole, rows in holes.items() if hole in bound
             for row in rows.tolist() if (kernel := bound[hole][row]) is not None}
    answers = dict(zip(asked, pricer.spans(list(asked)), strict=True))
    filled = []
    for hole, rows in holes.items():
        label, layer, repeat = hole
        if hole in bound:
            some = [row for row in rows.tolist() if bound[hole][row] is not None]
            spans = [answers[label, kernel] for row in some if (kernel := bound[hole][row]) is not None]
            filled += [Filled.of(spans, repeat, some)] if spans else []
        elif isinstance(layer, AttentionLayer):
            kernels = layer.sweep(batches if len(rows) == len(batches) else batches.of_rows(rows))
            filled.append(pricer.filled(label, kernels, estimates(pricer.oracle, kernels, pricer.gpu), repeat, rows))
    return filled


def inputs(batches: Batches, costs: Inputs) -> Filled:
    """The small kernels that bring each step's inputs to the GPU."""
    several = len(batches)
    seconds: Any = costs.copy + costs.copy_sequence * batches.sequences
    nothing, unknown, no = (np.broadcast_to(each, several) for each in (0.0, np.nan, np.False_))
    launch, first = (np.broadcast_to(np.int16(code), several) for code in (LAUNCH, 0))
    return Filled(
        "inputs", "inputs", 1, np.arange(several), seconds, nothing, nothing, nothing, launch, nothing, nothing, first,
        first, unknown, seconds, seconds, no, nothing, nothing, ("",), ("host",), lambda row: "",
        lambda: [""] * several)
