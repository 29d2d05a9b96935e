"""Directories of saved runs: written whole or not at all, and read again to compare two runs."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from attrs import frozen

from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import OLD, hidden_directory, taken

#: What tells the directory of an earlier run from one that is not ours to replace.
MARKS = ("summary.json", "scenario.toml")
#: The value of a key that a scenario does not have.
MISSING = None


def check(target: Path, marks: Sequence[str] = MARKS, force: bool = True) -> None:
    """Raise ConfigError unless a run can be saved at *target*, so that users learn it before the run.

    *marks* are the files that identify an earlier run, which is replaced only with *force*.
    """
    if target.exists() and not _replaceable(target, marks):
        raise ConfigError(str(target), "exists and is not the directory of an earlier run; choose another name")
    if not force and all((target / mark).exists() for mark in marks):
        raise ConfigError(str(target), "holds an earlier run; choose another name, or --force to replace it")
    parent = _nearest(target.parent)
    if not parent.is_dir():
        raise ConfigError(str(target), f"cannot be written: {parent} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(str(target), f"cannot be written: no permission to write in {parent}")


@contextmanager
def claimed(target: Path, marks: Sequence[str] = MARKS, force: bool = True) -> Iterator[None]:
    """Keep other processes from writing to *target* within the block, in which a run is made; checks as `check` does.

    A file beside *target* is locked, which the system unlocks however this process ends.  Raises ConfigError where
    another process holds it.
    """
    check(target, marks, force)
    made = [parent for parent in target.parents if not parent.exists()]
    lock = target.parent / f".{target.name}.ksim-lock"
    try:
        with _opened(lock) as file:
            if taken(file.fileno()) or not _is_at(lock, file.fileno()):
                raise ConfigError(str(target), "another process is writing there; choose another name, or wait for it")
            try:
                check(target, marks, force)  # again: what held the lock until now may have written a run
                yield
            finally:
                lock.unlink(missing_ok=True)
    finally:
        _remove_empty(made)


@contextmanager
def readable(*directories: Path) -> Iterator[None]:
    """Raise DataError for what goes wrong in the block, which shows saved runs or a study, because files were changed.

    Numbers of a summary may be texts by then, columns of a table missing, or of another kind.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(" or ".join(map(str, directories)), f"cannot be shown ({said}); if its files are as ksim has"
                                                            f" written them, report that; else run it again") from error


@contextmanager
def replacing(target: Path, marks: Sequence[str] = MARKS) -> Iterator[Path]:
    """Yield a new directory, which becomes *target* when everything is written.

    After any error inside, KeyboardInterrupt included, *target* is as it was.  Raises ConfigError if *target* is not
    an earlier run, or cannot be written.
    """
    check(target, marks)
    made = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with hidden_directory(target) as hidden:
            new = hidden / "new"
            new.mkdir()
            yield new
            _swap(new, target, hidden / OLD)
    except OSError as error:
        _remove_empty(made)
        raise ConfigError(str(target), f"cannot be written: {error.strerror or error}") from error
    except BaseException:
        _remove_empty(made)
        raise


def _swap(new: Path, target: Path, old: Path) -> None:
    """Put *new* in the place of *target*, which is kept as *old*."""
    try:
        if target.exists():
            target.rename(old)
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise


def _replaceable(target: Path, marks: Sequence[str]) -> bool:
    """Whether it is an earlier run or an empty directory."""
    return target.is_dir() and (all((target / mark).is_file() for mark in marks) or not any(target.iterdir()))


def _opened(lock: Path) -> IO[bytes]:
    """The file *lock*, made with its folder; raises ConfigError where it cannot be."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return lock.open("ab")
    except OSError as error:
        target = lock.with_name(lock.name.removeprefix(".").removesuffix(".ksim-lock"))
        raise ConfigError(str(target), f"cannot be written: {error.strerror or error}") from None


def _is_at(path: Path, file: int) -> bool:
    """Whether the open *file* is still the one at *path*, which its last owner may have removed."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _nearest(path: Path) -> Path:
    """The nearest existing path among *path* and its parents."""
    return next((parent for parent in (path, *path.parents) if parent.exists()), path)


def _remove_empty(directories: list[Path]) -> None:
    for directory in directories:
        with suppress(OSError):
            directory.rmdir()


class _Summary(dict[str, Any]):
    """The numbers of a run from the file at *path*; one that is missing raises DataError."""

    def __init__(self, numbers: Mapping[str, Any], path: Path):
        super().__init__(numbers)
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise DataError(str(self._path), f"has no {key}, as the summary of a run has; run it again")


@frozen(eq=False)
class Whole:
    """The run in `directory`: its numbers, and its `settings` by dotted keys; None if its scenario file is missing."""

    directory: Path
    summary: dict[str, Any]
    settings: Mapping[str, Any] | None

    @classmethod
    def read(cls, directory: Path) -> "Whole":
        """Read what `Result.save` or `stream` wrote.

        Raises ConfigError if there is no run, DataError if files are damaged.
        """
        try:
            text = (directory / "summary.json").read_bytes()
        except OSError:
            raise ConfigError(str(directory), "there is no run; name a directory that `ksim run -o` has written") from (
                None)
        try:
            summary = json.loads(text)
        except ValueError:
            summary = None
        if not isinstance(summary, dict):
            raise DataError(str(directory / "summary.json"), "is not the summary of a run; run it again")
        return cls(directory, _Summary(summary, directory / "summary.json"), _settings(directory / "scenario.toml"))

    @property
    def pools(self) -> dict[str, dict[str, Any]]:
        """The numbers of each pool by its name; none for a run without pools."""
        pools: dict[str, dict[str, Any]] = self.summary.get("pools", {})
        return pools

    def per_gpu(self, key: str) -> float | None:
        """A number of the run over its GPUs."""
        value, gpus = self.summary.get(key), self.summary.get("gpus")
        return value / gpus if value is not None and gpus else None


def changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys whose values differ, with both values; `MISSING` stands for a missing key.

    A plug-in may be a name in one scenario and a table with options in the other; then its name is compared.
    """
    one, other = _named(one, other), _named(other, one)
    return {key: (one.get(key, MISSING), other.get(key, MISSING)) for key in dict.fromkeys((*one, *other))
            if one.get(key, MISSING) != other.get(key, MISSING)}


def _named(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """*one*, with ``key.name`` in place of ``key`` where *other* has that."""
    return {f"{key}.name" if f"{key}.name" in other else key: value for key, value in one.items()}


def _settings(path: Path) -> Mapping[str, Any] | None:
    try:
        return flat(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(str(path), f"cannot be read as a scenario: {error}") from None


def flat(scenario: str) -> dict[str, Any]:
    """The settings of a *scenario* in TOML by their dotted keys; raises ValueError."""
    return dict(_flat(tomllib.loads(scenario)))


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value
