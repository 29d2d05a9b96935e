"""Products of rows that come out the same to the last bit, whatever other rows are multiplied with them."""

import numpy as np

from ksim.oracles.efficiency.physics import Array

__all__ = ["squares", "times"]


def times(rows: Array, matrix: Array) -> Array:
    """``rows @ matrix``, (rows, inputs) by (inputs, results) or (inputs,), row by row.

    Libraries add up in another order where there are more rows.  One call of the same shape for each row cannot, and
    numpy makes them all by itself.
    """
    apart = np.ascontiguousarray(rows)[:, None]
    found: Array = (apart @ matrix)[:, 0] if matrix.ndim > 1 else (apart @ matrix[:, None])[:, 0, 0]
    return found


def squares(rows: Array) -> Array:
    """The sum of squares of each of *rows*, (rows, inputs)."""
    rows = np.ascontiguousarray(rows)
    found: Array = (rows[:, None] @ rows[:, :, None])[:, 0, 0]
    return found
