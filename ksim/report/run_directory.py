"""A directory of results on disk, of one run or of many: complete, or not there at all."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ksim.foundation.errors import ConfigError
from ksim.foundation.hidden_directory import OLD, hidden_directory

#: What tells the directory of an earlier run from one that is not ours to replace.
MARKS = ("summary.json", "scenario.toml")


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


def _nearest(path: Path) -> Path:
    """The nearest existing path among *path* and its parents."""
    return next((parent for parent in (path, *path.parents) if parent.exists()), path)


def _remove_empty(directories: list[Path]) -> None:
    for directory in directories:
        with suppress(OSError):
            directory.rmdir()
