"""The directory of a study: complete up to the last run, however the study ends, so that it can go on from there."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from attrs import asdict, define, field, frozen

from ksim import __version__
from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import parquet_table, taken
from ksim.results import arrow
from ksim.study.rows import NOT_RUN, RunRow, from_table, to_table
from ksim.views import run_directory
from ksim.views.run_directory import changed, flat

if TYPE_CHECKING:
    import pyarrow as pa

#: The format of a study's directory; one of another format is not read.
FORMAT = 1
HEAD, SCENARIO, LINES, TABLE = "study.json", "scenario.toml", "runs.jsonl", "runs.parquet"
#: The files by which a study is recognised.
MARKS = (HEAD, SCENARIO)
_AT_WORK = "another process is at work on this study"


@frozen
class StudyHead:
    """The content of study.json: the kind of study, its title, the *command* that it carries out, ksim's version."""

    kind: str
    title: str
    command: Mapping[str, Any]
    format: int = FORMAT
    ksim: str = __version__

    @classmethod
    def read(cls, path: Path) -> "StudyHead":
        """Read the study.json of directory *path*; raises ConfigError, and DataError where it is damaged."""
        try:
            content = json.loads((path / HEAD).read_bytes())
        except OSError:
            raise ConfigError(str(path), "is no study; name a directory that `ksim sweep -o` or another study has"
                                         " written") from None
        except ValueError:
            content = None
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise ConfigError(str(path), f"is a study of format {content['format']}; ksim {__version__} reads format"
                                         f" {FORMAT}")
        try:
            return cls(**content)
        except TypeError:
            raise DataError(str(path / HEAD), "is damaged; it does not say what the study is") from None

    def write(self, path: Path) -> None:
        (path / HEAD).write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def differences(there: StudyHead, asked: StudyHead) -> Iterator[str]:
    """The differences of heads, in words: of the study that is *there* from the one that is *asked* for."""
    if there.kind != asked.kind:
        yield f"it is a {there.kind}, not a {asked.kind}"
    if there.ksim != asked.ksim:
        yield f"ksim {there.ksim} began it, and this is ksim {asked.ksim}"
    for key in dict.fromkeys((*there.command, *asked.command)):
        if (old := there.command.get(key)) != (new := asked.command.get(key)):
            yield f"its {key} was {_shown(old)}, and now is {_shown(new)}"


def changes(there: str, asked: str) -> Iterator[str]:
    """The differences of scenarios, in words."""
    for key, (old, new) in changed(flat(there), flat(asked)).items():
        yield f"in its scenario, {key} was {_shown(old)}, and now is {_shown(new)}"


def _shown(value: Any) -> str:
    return "not given" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def plain(command: Mapping[str, Any]) -> Mapping[str, Any]:
    """*command* as it reads back from JSON, to be compared with what was read."""
    plain: Mapping[str, Any] = json.loads(json.dumps(command, default=str))
    return plain


def text_of(path: Path) -> str:
    """The text of the file at *path*; raises DataError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(str(path), f"cannot be read: {error}") from None


@frozen
class KeptStudy:
    """A study as its directory has it, finished or not: its head, its scenario in TOML, and its rows."""

    path: Path
    head: StudyHead
    scenario: str
    rows: list[RunRow] = field(repr=False)

    @property
    def table(self) -> "pa.Table":
        """The rows as a table, as runs.parquet has it."""
        return to_table(self.rows)


@define
class StudyRuns:
    """The runs of a study so far, by point and replication; these are kept in memory alone."""

    rows: dict[tuple[int, int], RunRow] = field(factory=dict, repr=False, kw_only=True)

    def add(self, row: RunRow) -> None:
        """Keep *row*, a run that has ended."""
        self.rows[row.key] = row

    def without(self, rows: Sequence[RunRow]) -> list[RunRow]:
        """Those of *rows* that have not been run yet."""
        return [row for row in rows if row.key not in self.rows]

    def finish(self, left: Sequence[RunRow] = ()) -> None:
        """No more runs are added; *left* are those that were not run."""


@define
class StudyDirectory(StudyRuns):
    """A study that goes on: `add` keeps each run as it ends, `finish` makes the table.

    Used in a ``with``; it is locked until the end of that, so that no other process adds to it.
    """

    path: Path
    head: StudyHead
    _lines: IO[bytes] | None = field(default=None, repr=False)

    @classmethod
    def create(cls, path: Path, kind: str, title: str, command: Mapping[str, Any], scenario: str,
               force: bool = False) -> "StudyDirectory":
        """A new study at *path*; an earlier one is replaced with *force*.  Raises ConfigError."""
        path = path.resolve()
        check(path, force)
        head = StudyHead(kind, title, plain(command))
        with run_directory.claimed(path, MARKS):
            check(path, force)
            with run_directory.replacing(path, MARKS) as new:
                head.write(new)
                (new / SCENARIO).write_text(scenario, encoding="utf-8")
                (new / LINES).touch()
            return cls(path, head)._opened()

    @classmethod
    def open(cls, path: Path, kind: str, command: Mapping[str, Any], scenario: str) -> "StudyDirectory":
        """The study at *path*, to go on with; raises ConfigError where it is another one, and says what differs."""
        path = path.resolve()
        head = StudyHead.read(path)
        for difference in (*differences(head, StudyHead(kind, head.title, plain(command))),
                           *changes(text_of(path / SCENARIO), scenario)):
            raise ConfigError(str(path), f"cannot be resumed: {difference}; start anew with another name, or with"
                                         " --force")
        study = cls(path, head)._opened()
        study.rows |= {row.key: row for row in _rows(path) if row.status != NOT_RUN}
        return study

    @staticmethod
    def read(path: Path) -> KeptStudy:
        """The study at *path*, finished or not; raises ConfigError and DataError."""
        path = path.resolve()
        head = StudyHead.read(path)
        return KeptStudy(path, head, text_of(path / SCENARIO), _rows(path))

    def add(self, row: RunRow) -> None:
        """Keep *row*, whatever becomes of this process."""
        assert self._lines is not None, "rows are added within a `with`"
        with _writing(self.path):
            self._lines.write(row.line.encode())
            self._lines.flush()
        super().add(row)

    def finish(self, left: Sequence[RunRow] = ()) -> None:
        """Write the table of all runs; *left* are those that were not run, without which the study is complete."""
        from pyarrow import parquet

        new = self.path / f".{TABLE}.new"
        with _writing(self.path), arrow.frugally():
            try:
                parquet.write_table(to_table([*self.rows.values(), *left]), new, compression="zstd")
                new.replace(self.path / TABLE)
            finally:
                new.unlink(missing_ok=True)
        if not left:
            self.close()  # Windows keeps files that are open
            (self.path / LINES).unlink(missing_ok=True)

    def __enter__(self) -> "StudyDirectory":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let others add to the study."""
        if self._lines is not None:
            with suppress(OSError):  # what a full disk does not take has been told, or is there by now
                self._lines.close()
            self._lines = None

    def _opened(self) -> "StudyDirectory":
        """This study with its lines open and locked; a line that a killed process has not finished is removed.

        The lines of a complete study are made again: it may get further runs, and `finish` removes them.
        """
        lines = self.path / LINES
        if not lines.exists():
            ended = (row for row in _rows(self.path) if row.status != NOT_RUN)
            lines.write_text("".join(row.line for row in ended), encoding="utf-8")
        self._lines = lines.open("r+b")
        if taken(self._lines.fileno()):
            self._lines.close()
            raise ConfigError(str(self.path), _AT_WORK)
        self._lines.truncate(len(_ended(lines)))
        self._lines.seek(0, os.SEEK_END)
        return self


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raise ConfigError where the study at *path* cannot be written, as on a full disk."""
    try:
        yield
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror or error}") from error


def check(path: Path, force: bool) -> None:
    """Raise ConfigError unless a study can be written at *path*.

    An earlier study is replaced with *force*, or where none of its runs had ended.
    """
    replaced = is_study(path) and (force or all(row.status == NOT_RUN for row in _rows(path)))
    if is_study(path) and not replaced:
        raise ConfigError(str(path), "holds an earlier study; --resume goes on with it, --force replaces it")
    run_directory.check(path.resolve(), MARKS, force or replaced)
    if (path / LINES).exists():
        with (path / LINES).open("rb") as file:
            if taken(file.fileno()):
                raise ConfigError(str(path), _AT_WORK)


def is_study(path: Path) -> bool:
    """Whether *path* is the directory of a study."""
    return (path / HEAD).is_file()


def _rows(path: Path) -> list[RunRow]:
    """The rows of the study at *path*: those of its table, if there is one, and of the lines that are newer."""
    rows = {row.key: row for file, read in ((TABLE, _tabled), (LINES, _parsed)) if (path / file).exists()
            for row in read(path / file)}
    return list(rows.values())


def _tabled(path: Path) -> list[RunRow]:
    """The rows of the table at *path*."""
    from pyarrow import ArrowException

    try:
        return from_table(parquet_table(path))
    except (OSError, ArrowException, KeyError, ValueError) as error:
        raise DataError(str(path), f"cannot be read as the runs of a study: {error}") from None


def _parsed(path: Path) -> Iterator[RunRow]:
    """The rows of the file of lines at *path*."""
    for number, line in enumerate(_ended(path).splitlines(), 1):
        try:
            yield RunRow.parse(line)
        except ValueError:
            raise DataError(f"{path}:{number}", "is not a run of a study") from None


def _ended(path: Path) -> bytes:
    """The lines of *path* that have ended; a killed process leaves part of one behind them."""
    written = path.read_bytes()
    return written[:written.rfind(b"\n") + 1]
