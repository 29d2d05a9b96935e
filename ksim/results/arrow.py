"""Columns for pyarrow that take little time and memory.

They are made from bytes.  Given anything else, pyarrow loads pandas if it is installed, which takes a fifth of a
second and 36 MB.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ksim.results.steps import Bools, each, offsets

_OF_TYPES: dict[pa.DataType, Any] = {pa.float64(): np.float64, pa.int64(): np.int64, pa.int32(): np.int32}
_TYPES = {np.dtype(of): kind for kind, of in _OF_TYPES.items()}


@contextmanager
def frugally() -> Iterator[None]:
    """Let pyarrow return memory that it no longer needs; its own pool keeps 30 MB for blocks of 2."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def numbers(values: NDArray[Any], missing: Bools | None = None) -> pa.Array:
    """One number for each of *values*; null where it is *missing*."""
    known = None if missing is None or not missing.any() else _bits(~missing)
    return pa.Array.from_buffers(_TYPES[values.dtype], len(values), [known, pa.py_buffer(np.ascontiguousarray(values))])


def flags(values: Bools) -> pa.Array:
    """One truth value for each of *values*."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def texts(values: Iterable[str | None]) -> pa.Array:
    """One text for each of *values*; null where it is None."""
    found = [*values]
    encoded = [b"" if value is None else value.encode() for value in found]
    known = None if None not in found else _bits(np.array([value is not None for value in found]))
    bounds = offsets(each(encoded, len)).astype(np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(found), [known, pa.py_buffer(bounds), pa.py_buffer(b"".join(encoded))])


def table(columns: Mapping[str, pa.Array | NDArray[Any]]) -> pa.Table:
    """A table of *columns* by name."""
    return pa.table({name: numbers(column) if isinstance(column, np.ndarray) else column
                     for name, column in columns.items()})


def records(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """A table of *rows*; null where a row has no value, or None, for a column."""
    return pa.table([_column([row.get(field.name) for row in rows], field.type) for field in schema], schema=schema)


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.string():
        return texts(values)
    missing = np.array([value is None for value in values], dtype=np.bool_)
    known = [0 if value is None else value for value in values]
    return numbers(np.array(known, dtype=_OF_TYPES[kind]), missing)


def _bits(values: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
