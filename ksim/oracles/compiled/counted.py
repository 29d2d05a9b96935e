"""Formulas of what attention counts over a batch, made straight for batches with and without decodes and chunks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksim.compute.kernels.attention import COUNTS
from ksim.oracles.compiled.bounds import Between
from ksim.oracles.compiled.staging import stage

__all__ = ["Counted", "Kinds", "kinds_of"]

#: Whether a batch has decodes, and whether it has chunks; None where some of many batches have.
Kinds = tuple[bool | None, bool | None]
#: Bounds of how many sequences there are of a kind, and of all that is counted of them.
NUMBERS: Mapping[bool | None, Between] = {False: (0.0, 0.0), True: (1.0, 2.0**53), None: (0.0, 2.0**53)}


class Counted(dict[Kinds, Callable[..., Any]]):
    """A *formula* of a namespace, `COUNTS` and *further* numbers: staged for each kind of batch, once one comes."""

    def __init__(self, formula: Callable[..., Any], m: Any, further: Mapping[str, Between] | None = None) -> None:
        self.formula, self.m, self.further = formula, m, further or {}

    def __missing__(self, kinds: Kinds) -> Callable[..., Any]:
        decodes, chunks = (NUMBERS[kind] for kind in kinds)
        counts = {name: chunks if name.startswith("chunk") else decodes for name in COUNTS}
        self[kinds] = stage(self.formula, {**counts, **self.further}, self.m)
        return self[kinds]


def kinds_of(counts: Sequence[NDArray[Any]]) -> Kinds:
    """Of batches whose `COUNTS` are columns."""
    decodes, _, _, chunks, *_ = counts
    return _all(decodes), _all(chunks)


def _all(numbers: NDArray[Any]) -> bool | None:
    some = np.count_nonzero(numbers)
    return True if some == len(numbers) else None if some else False
