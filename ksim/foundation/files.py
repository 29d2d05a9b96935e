"""Files that a user names: checked before they are read, and replaced only by whole ones."""

import gzip
import io
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ksim.foundation.errors import ConfigError, DataError

#: The most bytes of a file that is read whole, such as a scenario or a config.json.
LONGEST = 64 * 2**20
#: The most bytes of a table in text, which is held whole.
LONGEST_TABLE = 256 * 2**20
#: A packed file may unpack to so many bytes, or to so many times its own size.  Traces are packed 5 to 50 times.
_ANY_RATIO, _MOST_RATIO = 2**28, 200
#: What reading a damaged .npz file raises.
DAMAGED = (EOFError, IndexError, KeyError, MemoryError, NotImplementedError, RuntimeError, TypeError, ValueError,
           zipfile.BadZipFile, zlib.error)


def is_there(path: Path) -> bool:
    """Whether a file or a folder is at *path*; a name that none may have, such as one that is too long, is nowhere."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def regular_file(path: Path, most: int | None = None) -> Path:
    """Return *path* if it is a regular file, of no more than *most* bytes.

    Raises DataError for anything else: a missing file, a folder, and pipes and devices, which could block for ever.
    """
    try:
        found = path.stat()
        mode = found.st_mode
    except OSError as error:
        raise DataError(str(path), f"{error.strerror or error}{nearest(path)}") from None
    except ValueError as error:  # a null character
        raise DataError(repr(str(path)), f"is not the name of a file: {error}") from None
    if stat.S_ISDIR(mode):
        raise DataError(str(path), "is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        raise DataError(str(path), "is a pipe or a device; save its content to a file, and name that")
    if most is not None and found.st_size > most:
        raise DataError(str(path), f"is {found.st_size / 2**20:,.0f} MiB long; a file of its kind is read up to"
                                   f" {most / 2**20:,.0f} MiB")
    return path


class Unpacked(io.RawIOBase):
    """What is in the gzip file at *path*, as it is read: a few bytes cannot become more than any memory or time.

    Reading raises DataError where the file unpacks to more than `_ANY_RATIO` and to `_MOST_RATIO` times its size.
    """

    def __init__(self, path: Path):
        super().__init__()
        self._path, self._file = path, gzip.GzipFile(path)
        self._left = _most_unpacked(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise _too_large(self._path, f"; if it is right, unpack it first: gunzip {self._path.name}")
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _most_unpacked(path: Path) -> int:
    return max(_ANY_RATIO, _MOST_RATIO * path.stat().st_size)


def _too_large(path: Path, remedy: str) -> DataError:
    return DataError(str(path), f"unpacks to more than {_MOST_RATIO} times its size, as no trace or table does{remedy}")


def arrays(path: Path) -> Mapping[str, Any]:
    """The arrays of the .npz file at *path*, each read when it is asked for; no file stays open.

    Raises DataError for a file that is missing, or that unpacks to more than `Unpacked` reads; what NumPy raises for
    one that is damaged is any of `DAMAGED`.
    """
    import numpy as np

    content = io.BytesIO(regular_file(path).read_bytes())
    with zipfile.ZipFile(content) as packed:  # which reads no more of a member than its directory says
        if sum(member.file_size for member in packed.infolist()) > _most_unpacked(path):
            raise _too_large(path, "; make it again")
    made: Mapping[str, Any] = np.load(content, allow_pickle=False)
    return made


def parquet_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """The table of Arrow in the Parquet file at *path*, or these *columns* of it.

    Raises DataError for one that unpacks to more than `Unpacked` reads, before it does, and what Arrow raises.
    """
    from pyarrow import compute, parquet, types

    with parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
        chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
        kinds = ((field.name, getattr(field.type, "value_type", field.type)) for field in file.schema_arrow
                 if not types.is_nested(field.type))
        wide = [name for name, kind in kinds if types.is_string(kind) or types.is_binary(kind)]
    # A run of equal values takes a few bytes in the file and, in the table, 8 bytes each.
    left = _most_unpacked(path) - sum(max(chunk.total_uncompressed_size, 8 * chunk.num_values) for chunk in chunks)
    if left < 0:
        raise _too_large(path, "; make it again")
    table = parquet.read_table(path, columns=columns, read_dictionary=wide)
    for place, name in enumerate(table.column_names):
        if name in wide:  # each of its texts is there once, until they are known to fit
            lengths = (compute.binary_length(part.dictionary).take(part.indices) for part in table[place].chunks)
            left -= sum(compute.sum(each).as_py() or 0 for each in lengths)
            if left < 0:
                raise _too_large(path, "; make it again")
            table = table.set_column(place, name, table[place].cast(table.schema.types[place].value_type))
    return table


def nearest(path: Path) -> str:
    """The file beside *path* with the most similar name, and what to do where there is not even the folder."""
    try:
        if not path.parent.is_dir():
            return f"; there is no folder {path.parent}"
        names = [file.name for file in path.parent.iterdir() if not file.name.startswith(".")]
    except OSError:
        return ""
    close = get_close_matches(path.name, names, n=1, cutoff=0.75) or [
        name for name in names if Path(name).stem in (path.name, path.stem)]
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


#: What changes when a file is written anew: its device, its inode, its size and when it was changed.
FileVersion = tuple[int, int, int, int]


def version(path: Path) -> FileVersion:
    """Which version of the file at *path* is there; what was read from it holds as long as that stays."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a file to write beside *path*, which it replaces at the end; an interruption changes nothing.

    Raises ConfigError where the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(path)
    except FileExistsError:
        raise ConfigError(str(path), f"cannot be written: {path.parent} is a file; name a folder") from None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror or error}") from None
    finally:
        if partial.exists():
            partial.unlink()
