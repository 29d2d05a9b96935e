"""Files that commands write: none over another without --force, and each of them whole or not at all."""

from pathlib import Path

from ksim.foundation.errors import ConfigError
from ksim.foundation.files import replacing


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
