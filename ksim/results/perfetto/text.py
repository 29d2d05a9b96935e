"""Many lines of JSON at once, out of columns."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow._compute import CastOptions, JoinOptions, TakeOptions, call_function

from ksim.results import arrow
from ksim.results.arrays import Floats, Ints

Column = list[pa.Array]

_DIGITS = arrow.texts(f".{number:03}" for number in range(1000))
# Functions are called by their names: to load `pyarrow.compute`, which has them all as Python's, takes longer than to
# write thousands of lines.
_TO_TEXT, _TAKE, _JOIN = CastOptions.safe(pa.string()), TakeOptions(), JoinOptions()


def whole(numbers: Ints) -> Column:
    """Whole numbers."""
    return [call_function("cast", [arrow.numbers(numbers)], _TO_TEXT)]


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
    """Those of *texts* at these places."""
    return call_function("take", [texts, arrow.numbers(numbers)], _TAKE)


def joined(*parts: str | Column) -> Column:
    """These parts in turn, row by row."""
    pieces = [piece for part in parts for piece in ([part] if isinstance(part, str) else part)]
    # pyarrow would make scalars of the texts by itself, but load pandas first.
    constants = iter(arrow.texts([*(piece for piece in pieces if isinstance(piece, str)), ""]))
    columns = [next(constants) if isinstance(piece, str) else piece for piece in pieces]
    return [call_function("binary_join_element_wise", [*columns, next(constants)], _JOIN)]


def lines(*parts: str | Column) -> memoryview:
    """One line for each row, of these parts in turn: all of them together."""
    (column,) = joined(*parts)
    _, ends, text = column.buffers()
    if not len(column) or text is None:
        return memoryview(b"")
    bounds: Any = np.frombuffer(ends, np.int32, len(column) + 1)
    return memoryview(text)[: int(bounds[-1])]
