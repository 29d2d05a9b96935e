"""Checks of files that a user names, before they are opened."""

import stat
from pathlib import Path

from ksim.foundation.errors import DataError


def regular_file(path: Path) -> Path:
    """Return *path* if it is a regular file.

    Raises DataError for anything else: a missing file, a folder, and pipes and devices, which could block for ever.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise DataError(str(path), error.strerror or str(error)) from None
    except ValueError as error:  # a null character
        raise DataError(repr(str(path)), f"is not the name of a file: {error}") from None
    if stat.S_ISDIR(mode):
        raise DataError(str(path), "is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        raise DataError(str(path), "is a pipe or a device; save its content to a file, and name that")
    return path
