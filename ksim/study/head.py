"""What tells one study from another: the head of its directory, and its scenario."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from ksim import __version__
from ksim.foundation.errors import ConfigError, DataError
from ksim.views.run_directory import changed, flat

#: The format of a study's directory; one of another format is not read.
FORMAT = 1
HEAD, SCENARIO = "study.json", "scenario.toml"


@frozen
class Head:
    """What study.json says: the kind of study, its title, the *command* that it carries out, and who wrote it."""

    kind: str
    title: str
    command: Mapping[str, Any]
    format: int = FORMAT
    ksim: str = __version__

    @classmethod
    def read(cls, path: Path) -> "Head":
        """Read the study.json of directory *path*; raises ConfigError, and DataError where it is damaged."""
        try:
            said = json.loads((path / HEAD).read_bytes())
        except OSError:
            raise ConfigError(str(path), "is no study; name a directory that `ksim sweep -o` or another study has"
                                         " written") from None
        except ValueError:
            said = None
        if isinstance(said, dict) and said.get("format", FORMAT) != FORMAT:
            raise ConfigError(str(path), f"is a study of format {said['format']}; ksim {__version__} reads format"
                                         f" {FORMAT}")
        try:
            return cls(**said)
        except TypeError:
            raise DataError(str(path / HEAD), "is damaged; it does not say what the study is") from None

    def write(self, path: Path) -> None:
        (path / HEAD).write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def differences(there: Head, wanted: Head) -> Iterator[str]:
    """How the study that is *there* differs from the one that is *wanted*, in its head."""
    if there.kind != wanted.kind:
        yield f"it is a {there.kind}, not a {wanted.kind}"
    if there.ksim != wanted.ksim:
        yield f"ksim {there.ksim} began it, and this is ksim {wanted.ksim}"
    for key in dict.fromkeys((*there.command, *wanted.command)):
        if (old := there.command.get(key)) != (new := wanted.command.get(key)):
            yield f"its {key} was {_shown(old)}, and now is {_shown(new)}"


def changes(there: str, wanted: str) -> Iterator[str]:
    """How the scenario that is *there* differs from the one that is *wanted*."""
    for key, (old, new) in changed(flat(there), flat(wanted)).items():
        yield f"in its scenario, {key} was {_shown(old)}, and now is {_shown(new)}"


def _shown(value: Any) -> str:
    return "not given" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def plain(command: Mapping[str, Any]) -> Mapping[str, Any]:
    """*command* as it reads back from JSON, to be compared with what was read."""
    plain: Mapping[str, Any] = json.loads(json.dumps(command, default=str))
    return plain


def text_of(path: Path) -> str:
    """What is in the file at *path*; raises DataError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(str(path), f"cannot be read: {error}") from None
