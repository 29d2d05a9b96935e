"""Formulas of what attention counts over a batch, staged for batches with and without decodes and chunks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksim.compute.kernels.attention import COUNTS
from ksim.oracles.compiled.intervals import Interval
from ksim.oracles.compiled.staging import stage

__all__ = ["StagedFormula", "BatchKinds", "batch_kinds"]

#: Whether a batch has decodes, and whether it has chunks; None where some of many batches have.
BatchKinds = tuple[bool | None, bool | None]
#: Bounds of how many sequences there are of a kind, and of all that is counted of them.
COUNT_INTERVALS: Mapping[bool | None, Interval] = {False: (0.0, 0.0), True: (1.0, 2.0**53), None: (0.0, 2.0**53)}


class StagedFormula(dict[BatchKinds, Callable[..., Any]]):
    """A *formula* of a namespace, `COUNTS` and *further* numbers, staged for a kind of batch when one first comes."""

    def __init__(self, formula: Callable[..., Any], m: Any, further: Mapping[str, Interval] | None = None) -> None:
        self.formula, self.m, self.further = formula, m, further or {}

    def __missing__(self, kinds: BatchKinds) -> Callable[..., Any]:
        decodes, chunks = (COUNT_INTERVALS[kind] for kind in kinds)
        counts = {name: chunks if name.startswith("chunk") else decodes for name in COUNTS}
        self[kinds] = stage(self.formula, {**counts, **self.further}, self.m)
        return self[kinds]


def batch_kinds(counts: Sequence[NDArray[Any]]) -> BatchKinds:
    """The kinds of batches whose `COUNTS` are columns."""
    decodes, _, _, chunks, *_ = counts
    return _all(decodes), _all(chunks)


def _all(numbers: NDArray[Any]) -> bool | None:
    some = np.count_nonzero(numbers)
    return True if some == len(numbers) else None if some else False
