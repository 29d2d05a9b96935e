"""Which rows of measurements count: rules by which some are left out, each with its reason."""

from collections.abc import Callable

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.calibration.measurements import SWEEP, Measurements

Mask = NDArray[np.bool_]


@frozen
class Rule:
    """Rows for which `holds` is true are meant, for the `reason` given."""

    reason: str
    holds: Callable[[Measurements], Mask]


def in_tables(rows: Measurements) -> Mask:
    """All rows or none: whether they come from a public table, which names a serving engine, and not from a sweep."""
    return np.full(len(rows), not rows.source.swept)


def of_vllm(reason: str) -> Rule:
    """Rows of a table that another engine than vLLM measured."""
    return Rule(reason, lambda rows: np.full(len(rows), rows.source.backend not in (SWEEP, "vllm")))


def alike(rows: Measurements, *columns: str) -> NDArray[np.int64]:
    """Number the rows by their values in *columns*."""
    values = np.stack([rows[name] for name in columns], axis=1)
    numbers: NDArray[np.int64] = np.unique(values, axis=0, return_inverse=True)[1].ravel()
    return numbers
