"""Many lines of JSON at once, out of columns."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from pyarrow import compute

from ksim.results import arrow
from ksim.results.arrays import Floats, Ints

_DIGITS = arrow.texts(f".{number:03}" for number in range(1000))


def whole(numbers: Ints) -> list[pa.Array]:
    """Whole numbers."""
    return [arrow.numbers(numbers).cast(pa.string())]


def thousandths(numbers: Ints) -> list[pa.Array]:
    """A thousand times less than *numbers*, which are whole and not negative, with three digits after the point."""
    return [arrow.numbers(numbers // 1000).cast(pa.string()), _DIGITS.take(arrow.numbers(numbers % 1000))]


def microseconds(times: Floats) -> list[pa.Array]:
    """*times* in seconds, to the nanosecond."""
    return thousandths(np.rint(1e9 * times).astype(np.int64))


def picked(texts: Iterable[str], numbers: Ints) -> list[pa.Array]:
    """The text with each of these *numbers*."""
    return [arrow.texts(texts).take(arrow.numbers(numbers))]


def lines(*parts: str | list[pa.Array]) -> tuple[bytes, Ints]:
    """One line for each row, of these parts in turn: all lines together, and where each begins and the last ends."""
    pieces = [piece for part in parts for piece in ([part] if isinstance(part, str) else part)]
    constants = [piece for piece in pieces if isinstance(piece, str)]
    scalars = iter(arrow.texts([*constants, ""]))  # pyarrow would make the same of texts, but load pandas first
    joined = compute.binary_join_element_wise(
        *(next(scalars) if isinstance(piece, str) else piece for piece in pieces), next(scalars))
    _, ends, text = joined.buffers()
    count = len(joined)
    bounds = np.frombuffer(ends, np.int32, count + 1) if count else np.zeros(1, np.int32)
    return bytes(text.to_pybytes() if count and text else b"")[: bounds[-1]], bounds.astype(np.int64)
