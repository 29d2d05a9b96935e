"""A directory of results on disk, a run's or of many: there in full, or not at all."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ksim.foundation.errors import ConfigError
from ksim.foundation.hidden_directory import OLD, hidden_directory

#: What tells the directory of an earlier run from one that is not ours to replace.
MARKS = ("summary.json", "scenario.toml")


def check(target: Path, marks: Sequence[str] = MARKS, force: bool = True) -> None:
    """Raise ConfigError unless a run can be saved at *target*: worth knowing before the run.

    *marks* are the files that an earlier one has, which may be replaced with *force* only.
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
def replacing(target: Path, marks: Sequence[str] = MARKS) -> Iterator[Path]:
    """Yield a new directory to write in that becomes *target* once all is written.

    Whatever goes wrong inside, KeyboardInterrupt included, *target* is as it was.
    Raises ConfigError where *target* is not an earlier run's, or cannot be written.
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
    """An earlier run, or a directory with nothing in it."""
    return target.is_dir() and (all((target / mark).is_file() for mark in marks) or not any(target.iterdir()))


def _nearest(path: Path) -> Path:
    """The nearest of *path* and its parents that exists."""
    return next((parent for parent in (path, *path.parents) if parent.exists()), path)


def _remove_empty(directories: list[Path]) -> None:
    for directory in directories:
        with suppress(OSError):
            directory.rmdir()
