"""Hidden folders for files that are not finished yet, and the removal of those that a killed process left behind."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

__all__ = ["OLD", "hidden_directory", "taken"]

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
