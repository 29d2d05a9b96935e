"""Columns of a CSV or Parquet file as arrays, with row numbers for messages."""

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from attrs import evolve, frozen

from ksim.calibration.batches import Column, Floats, Ints, Texts
from ksim.calibration.measurements import MISSING
from ksim.foundation.errors import DataError
from ksim.foundation.files import LONGEST_TABLE, parquet_table, regular_file

_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
_LIST_MARKS = re.compile(r"[\[\](),;|]")


class NoTable(DataError):
    """A file that is not a table."""


@frozen(eq=False)
class Frame:
    """The table in the file at `path`; `places` are the row numbers there, counted in `unit`."""

    path: Path
    table: Any
    places: Ints
    unit: str

    @property
    def names(self) -> list[str]:
        names: list[str] = self.table.column_names
        return names

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def texts(self, name: str) -> Texts:
        """Return a column as texts; missing entries are empty."""
        filled = self._strings(name)
        return np.array(filled.to_pylist(), dtype=np.str_) if len(self) else np.array([], dtype="U1")

    def _strings(self, name: str) -> Any:
        column = self.table[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return pc.fill_null(column.cast(pa.string()), "")

    def numbers(self, name: str) -> Floats:
        """Return a column as numbers; other entries are NaN."""
        column = self.table[name]
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            valid = pc.match_substring_regex(column, _NUMBER)
            column = pc.utf8_trim_whitespace(pc.if_else(valid, column, pa.scalar(None, column.type)))
        try:
            return np.asarray(pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy(), dtype=np.float64)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(str(self.path), f"column {name!r} cannot be read as numbers: {error}") from None

    def whole(self, name: str) -> Ints:
        """Return a column as whole numbers; other entries and negative ones are MISSING."""
        if pa.types.is_integer(self.table[name].type) and not self.table[name].null_count:
            return np.asarray(np.maximum(self.table[name].to_numpy().astype(np.int64), MISSING), dtype=np.int64)
        return _whole(self.numbers(name))

    def lists(self, name: str) -> tuple[Ints, Ints]:
        """Return a column of lists: the start of each (and the end of the last), and all numbers in one array."""
        column = self.table[name]
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            parsed = [_parse(text or "") for text in column.to_pylist()]
            flat = [number for numbers in parsed for number in numbers]
            return np.cumsum([0, *map(len, parsed)], dtype=np.int64), np.array(flat, dtype=np.int64)
        if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
            raise DataError(str(self.path), f"column {name!r} holds no lists, such as [1, 1, 201] or \"1 1 201\"")
        sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        numbers = pc.list_flatten(column).cast(pa.float64())
        return np.concatenate(([0], np.cumsum(sizes))), _whole(pc.fill_null(numbers, np.nan).to_numpy())

    def renamed(self, names: Mapping[str, str]) -> "Frame":
        """Return the frame with other names for some columns."""
        return evolve(self, table=self.table.rename_columns([names.get(name, name) for name in self.names]))

    def having(self, name: str, values: Column) -> "Frame":
        """Return the frame with one more column."""
        return evolve(self, table=self.table.append_column(name, pa.array(values)))

    def take(self, rows: Column) -> "Frame":
        """Return the chosen *rows*, indices or a mask."""
        chosen = np.flatnonzero(rows) if rows.dtype == bool else rows
        return evolve(self, table=self.table.take(pa.array(chosen)), places=self.places[chosen])

    def where(self, name: str, *values: str) -> "Frame":
        """Return the rows whose column *name* is one of *values*."""
        mask = pc.is_in(self.table[name].cast(pa.string()), value_set=pa.array(values, pa.string()))
        return self.take(np.asarray(mask.to_numpy(zero_copy_only=False), dtype=bool))

    def groups(self, *names: str) -> Iterator[tuple[dict[str, str], "Frame"]]:
        """Yield each combination of values in the columns *names*, and its rows."""
        present = [name for name in names if name in self.names]
        codes, kinds = np.zeros(len(self), dtype=np.int64), []
        for name in present:
            coded = self._strings(name).combine_chunks().dictionary_encode()
            kinds.append(coded.dictionary.to_pylist())
            codes = codes * max(1, len(kinds[-1])) + coded.indices.to_numpy()
        for code in np.unique(codes):
            values, rest = {}, int(code)
            for name, known in zip(reversed(present), reversed(kinds), strict=True):
                rest, index = divmod(rest, max(1, len(known)))
                values[name] = known[index]
            yield {name: values.get(name, "") for name in names}, self.take(codes == code)


def _whole(numbers: Floats) -> Ints:
    good = (numbers >= 0) & (numbers < 2**53) & (np.floor(numbers) == numbers)
    return np.where(good, numbers, MISSING).astype(np.int64)


def _parse(text: str) -> list[int]:
    """Parse numbers such as ``1 1 201`` or ``[1, 1, 201]``; other words are MISSING."""
    return [int(word) if word.isdecimal() else MISSING for word in _LIST_MARKS.sub(" ", text).split()]


def load(path: Path) -> Frame:
    """Load a Parquet file, or a CSV file whose columns are all texts; raise NoTable for any other file."""
    try:
        with regular_file(path).open("rb") as file:
            parquet = file.read(4) == b"PAR1"
        if parquet:
            table = parquet_table(path)
            return Frame(path, table, np.arange(table.num_rows), "row")
        regular_file(path, LONGEST_TABLE)
        table = pa_csv.read_csv(path, parse_options=pa_csv.ParseOptions(newlines_in_values=True),
                                convert_options=_texts(path))
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror or error}") from None
    except (pa.ArrowInvalid, UnicodeDecodeError, csv.Error) as error:
        raise NoTable(str(path), f"is neither Parquet nor CSV: {error}") from None
    return Frame(path, table, _line_numbers(path, table.num_rows), "line")


def column_names(path: Path) -> list[str]:
    """Return the columns of the table at *path* without reading its rows; none if it is not a table."""
    try:
        with regular_file(path).open("rb") as file:
            parquet = file.read(4) == b"PAR1"
        return list(pq.read_schema(path).names) if parquet else _header(path)
    except (DataError, OSError, pa.ArrowInvalid, UnicodeDecodeError, csv.Error):
        return []


def _header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return next(csv.reader(file), [])


def _texts(path: Path) -> Any:
    types = dict.fromkeys(_header(path), pa.string())
    return pa_csv.ConvertOptions(column_types=types, strings_can_be_null=False)


def _line_numbers(path: Path, rows: int) -> Ints:
    """Return the line in which each row begins; the header is line 1."""
    lines = path.read_bytes().splitlines()
    filled = np.array([number for number, line in enumerate(lines, 1) if line.strip()][1:], dtype=np.int64)
    return filled if len(filled) == rows else np.arange(2, rows + 2)
