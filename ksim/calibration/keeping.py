"""A calibration to the file that keeps it: a profile."""

import os
from collections.abc import Mapping
from pathlib import Path

from ksim.calibration.calibrate import Calibration
from ksim.foundation.errors import ConfigError
from ksim.oracles.efficiency.profile import save

ENDING = ".npz"


def keep(path: Path, calibration: Calibration, command: str, files: Mapping[str, str]) -> None:
    """Write a profile that says it was made by *command* from *files*; raises ConfigError if it cannot be written.

    An interruption leaves the file that was there.
    """
    part = path.with_name(f".{path.name}.part")
    entries = {each.name: each.efficiency for each in calibration.parts}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(part, calibration.gpu.name, command, entries, fitted_to=dict(files))
        part.replace(path)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror or error}") from None
    finally:
        if part.exists():
            part.unlink()


def check_place(path: Path) -> None:
    """Raise ConfigError where no profile can be written to *path*: sooner than after minutes of fitting."""
    if path.suffix != ENDING:
        raise ConfigError(str(path), f"is no name of a profile; choose one that ends in {ENDING}")
    if path.is_dir():
        raise ConfigError(str(path), "is a folder")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(str(path), f"cannot be written: {folder} is no folder that may be written to")
