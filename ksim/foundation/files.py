"""Files: those that a user names are checked and bounded as they are read; written ones are whole or not there."""

import ast
import gzip
import io
import re
import shutil
import stat
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ksim.foundation.errors import ConfigError, DataError

__all__ = ["broken_line", "not_utf8", "number_hint", "OLD", "hidden_directory", "taken", "LONGEST", "LONGEST_TABLE",
           "DAMAGED", "is_there", "regular_file", "Unpacked", "arrays", "parquet_table", "nearest", "FileVersion",
           "version", "replacing", "plug_ins"]


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


#: Characters that chat programs and word processors put in place of those of a keyboard, and what to write.
_TYPOGRAPHIC = {**dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb`", '"'), **dict.fromkeys("\u2018\u2019", "'")}
#: Dashes that look like a minus, and spaces that look like one and are none.
_MINUS, _SPACES = "\u2212\u2013\u2014", "\u00a0\u2007\u202f\u200b"
_PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")
_LONGEST = 60
#: What a line that is no TOML looks like, and what to write.
_SYNTAX = (
    (r"[\w.-]+\s*:|- ", 'this reads like YAML; TOML has KEY = VALUE, such as gpu = "h200", and [TABLES]'),
    (r".*=\s*\d+,\d", "write a decimal point, such as 0.5, and no comma"),
    (r".*=\s*(True|False|None|null|yes|no|on|off)\b", "write true or false; leave out a key that has no value"),
    (r".*=\s*[A-Za-z/~.]", 'put a text in quotes, such as model = "llama-3.1-8b"'),
    (r".*=\s*[\d.]+\s*[A-Za-z%]", 'put a quantity with its unit in quotes, such as "200 ms"'),
    (r"\[[^]]*$|.*=\s*[\[{\"'][^\]}\"']*$", "close the bracket or quote"),
)


def broken_line(text: str, problem: str) -> str:
    """The line of *text* that a parser's *problem* is about, and what is probably wrong with it; "" if unknown.

    *problem* says "(at line 2, column 9)", as `tomllib` does.
    """
    found, lines = _PLACE.search(problem), text.rstrip().splitlines()
    number = int(found[1]) if found else len(lines) if "end of document" in problem else 0
    if not 0 < number <= len(lines):
        return ""
    line = lines[number - 1].strip()
    hint = _hint(text, line, problem)
    shown = line if len(line) <= _LONGEST else f"{line[:_LONGEST - 4]} ..."
    return f": {shown}" + (f"; {hint}" if hint else "")


def _hint(text: str, line: str, problem: str) -> str:
    if text.lstrip().startswith("{"):
        return "this is JSON: name the file .json"
    if odd := next((letter for letter in line if letter in _TYPOGRAPHIC), ""):
        return f"write {_TYPOGRAPHIC[odd]} in place of {odd}"
    if any(minus in line for minus in _MINUS):
        return "write a plain - as the minus"
    if any(space in line for space in _SPACES):
        return "there is a space that is no plain space, as web pages have: write it anew"
    if "twice" in problem or "overwrite" in problem:
        return "put the keys of both into one table, and each key once"
    return next((hint for pattern, hint in _SYNTAX if re.match(pattern, line)), "")


def not_utf8(content: bytes) -> str:
    """Why *content* is no text in UTF-8."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "is not text in UTF-8, but in UTF-16; save it as UTF-8"
    kinds = {b"PAR1": "a Parquet file", b"\x1f\x8b": "gzipped", b"PK\x03\x04": "a zip archive", b"\x89PNG": "a picture",
             b"%PDF": "a PDF", b"\x93NUMPY": "an array of NumPy's"}
    kind = next((kind for start, kind in kinds.items() if content.startswith(start)), "")
    return f"is not text in UTF-8{f', but {kind}' if kind else ''}"


def number_hint(text: object, kind: type = float) -> str:
    """What to write in place of *text*, which is meant to be a number; "" where nobody knows."""
    if not isinstance(text, str):
        return ""
    if any(minus in text for minus in _MINUS):
        return "; write a plain - as the minus"
    if kind is int:
        return _whole_hint(text.strip())
    has_comma = re.match(r"\s*[-+]?\d+,\d", text)
    return f"; write a decimal point: {text.replace(',', '.', 1).strip()!r}" if has_comma else ""


def _whole_hint(text: str) -> str:
    if re.fullmatch(r"\d+(,\d{3})+", text):
        return f"; write it without commas: {text.replace(',', '')}"
    if re.fullmatch(r"\d+(\.\d+)?\s*[kK]", text):
        return f"; write it out, such as {round(float(text[:-1]) * 1024)}"
    return "; several values are for `ksim sweep --over`" if re.fullmatch(r"\d+(\s*,\s*\d+)+", text) else ""


#: How the names of such folders end, and the file in each that names what it is to become.
_ENDING, _OWNER = ".ksim-partial", "owner"
#: The name, inside such a folder, of what was moved out of the way of the new files.
OLD = "old"


@contextmanager
def hidden_directory(target: Path) -> Iterator[Path]:
    """Yield a new folder beside *target*, where a rename to *target* is one step; it is removed on the way out.

    Folders that killed processes left beside *target* are removed first.  What one of them had moved out of the way,
    as `OLD`, and had no time to replace, is moved back.  A folder belongs to a live process as long as its owner file
    is locked: the system releases the lock however the process ends.  Raises OSError where nothing can be written.
    """
    _collect(target.parent)
    with (ExitStack() as held,  # released last: until then nobody else may touch the folder
          tempfile.TemporaryDirectory(prefix=f".{target.name}.", suffix=_ENDING, dir=target.parent) as made):
        _claim(Path(made), target.name, held)
        yield Path(made)


def _claim(made: Path, name: str, held: ExitStack) -> None:
    """Lock the owner file of *made*; where the file system has no locks, nobody ever collects the folder."""
    new = made / f"{_OWNER}.new"
    new.write_text(name, encoding="utf-8")
    file = new.open("r+", encoding="utf-8")
    if _locked(file.fileno()):
        held.enter_context(file)
        new.rename(made / _OWNER)  # nobody sees it before it is locked
    else:
        file.close()


def _collect(parent: Path) -> None:
    """Remove the folders in *parent* whose owners have ended."""
    for owner in parent.glob(f".*{_ENDING}/{_OWNER}"):
        with suppress(OSError), owner.open("r+", encoding="utf-8") as file:
            if _locked(file.fileno()):
                _put_back(owner.parent / OLD, parent / Path(file.read()).name)
                shutil.rmtree(owner.parent)


def _put_back(old: Path, target: Path) -> None:
    if old.exists() and not target.exists():
        old.rename(target)


if sys.platform == "win32":
    def _locked(file: int) -> bool:
        return False

    def taken(file: int) -> bool:
        """Whether another process has locked the open *file*; never, as there are no locks."""
        return False
else:
    import fcntl

    def _locked(file: int) -> bool:
        """Whether this process now holds the lock of the open *file*."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def taken(file: int) -> bool:
        """Whether another process has locked the open *file*; if not, this one has now, where there are locks."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False


def check_scenario(path: Path, force: bool) -> None:
    """Raise ConfigError where no scenario can be written to *path*: it is no .toml file, or is there already."""
    if path.suffix != ".toml":
        raise ConfigError(str(path), "is no .toml file; name one, such as scenario.toml")
    check_new(path, force)


def check_new(path: Path, force: bool) -> None:
    """Raise ConfigError for a file that is there already, unless *force*."""
    if path.exists() and not force:
        raise ConfigError(str(path), "exists; --force replaces it")


def write(path: Path, text: str) -> None:
    """Write *text* to *path*; raises ConfigError where it cannot be written."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def plug_ins(folder: Path) -> dict[str, tuple[Path, str]]:
    """The file and the object of each plug-in among the modules in *folder*, by its name; none of them is imported.

    It is called what its file is called, or, where ``__all__`` of a file names several, what the object is called.
    """
    return {path.stem if len(public) == 1 else _snake_case(name): (path, name)
            for path in sorted(folder.glob("[!_]*.py")) for public in [_public(path)] for name in public}


def _public(path: Path) -> list[str]:
    listed = re.search(r"^__all__ = (\[[^]]*\])", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [*ast.literal_eval(listed[1])] if listed else []


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
