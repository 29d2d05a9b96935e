"""Many lines of JSON at once, out of columns."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from ksim.results import arrow
from ksim.results.arrays import Floats, Ints

Column = list[pa.Array]

_DIGITS = arrow.texts(f".{number:03}" for number in range(1000))


def whole(numbers: Ints) -> Column:
    """Whole numbers."""
    return [arrow.numbers(numbers).cast(pa.string())]


def thousandths(numbers: Ints) -> Column:
    """A thousand times less than *numbers*, which are whole and not negative, with three digits after the point."""
    most, rest = np.divmod(numbers, 1000)
    return [*whole(most), taken(_DIGITS, rest)]


def microseconds(times: Floats) -> Column:
    """*times* in seconds, to the nanosecond."""
    return thousandths(np.rint(1e9 * times).astype(np.int64))


def picked(texts: Iterable[str], numbers: Ints) -> Column:
    """The text with each of these *numbers*."""
    return [taken(arrow.texts(texts), numbers)]


def taken(texts: pa.Array, numbers: Ints) -> pa.Array:
    """The *texts* at these places."""
    return texts.take(arrow.numbers(numbers))


def joined(*parts: str | Column) -> Column:
    """These parts in turn, row by row."""
    pieces = [piece for part in parts for piece in ([part] if isinstance(part, str) else part)]
    # pyarrow would make scalars of the texts by itself, but load pandas first.
    constants = iter(arrow.texts([*(piece for piece in pieces if isinstance(piece, str)), ""]))
    columns = [next(constants) if isinstance(piece, str) else piece for piece in pieces]
    return [compute.binary_join_element_wise(*columns, next(constants))]


def lines(*parts: str | Column) -> memoryview:
    """One line for each row, of these parts in turn: all of them together."""
    (column,) = joined(*parts)
    _, ends, text = column.buffers()
    if not len(column) or text is None:
        return memoryview(b"")
    bounds: Any = np.frombuffer(ends, np.int32, len(column) + 1)
    return memoryview(text)[: int(bounds[-1])]
