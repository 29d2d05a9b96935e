"""Files that start one program: a unit of systemd, a Dockerfile, a list of words in JSON.

Each is written out as lines of a shell, which stand where the file has them.
"""

import json
import re
import shlex
from collections.abc import Callable, Sequence

from attrs import evolve

from ksim.deploy.launches import Deployed, Wanted
from ksim.deploy.readers.lines import Lines
from ksim.deploy.texts import Pasted

__all__ = ["Units"]


class Units:
    """Writes the file out as a script, and lets the reader of lines read that."""

    def recognises(self, pasted: Pasted) -> bool:
        return _form(pasted.text) is not None

    def read(self, pasted: Pasted, wanted: Wanted) -> Deployed:
        """The engine that the file starts; raises ConfigError as a script does."""
        write = _form(pasted.text)
        assert write is not None, "only what is recognised is read"
        return Lines().read(evolve(pasted, text=write(pasted.text)), wanted)


def _form(text: str) -> Callable[[str], str] | None:
    """What writes out a text as a script; None for other texts."""
    if re.search(r"(?m)^ExecStart=", text):
        return _unit
    if re.search(r"(?mi)^FROM\s+\S", text) and re.search(r"(?mi)^(CMD|ENTRYPOINT)\s", text):
        return _dockerfile
    return _json_words if _texts(text) else None


def _unit(text: str) -> str:
    """The lines of a unit that set variables and start the program."""
    lines, goes_on = [], False
    for line in text.split("\n"):
        match = re.match(r"(Environment|ExecStart)=[-@:+!]*(.*)", line)
        kept = line if goes_on else ""
        if match:
            kept = f"export {match[2]}" if match[1] == "Environment" else match[2]
        goes_on = (goes_on or match is not None) and line.rstrip().endswith("\\")
        lines.append(kept)
    return "\n".join(lines)


def _dockerfile(text: str) -> str:
    """A Dockerfile as `docker run IMAGE ENTRYPOINT CMD`, in the line of the last of these."""
    image, entrypoint, words, lines = "", "", "", [""]
    for line in re.sub(r"\\\s*\n", lambda match: " \x00", text).split("\n"):
        instruction, _, rest = line.replace("\x00", "").strip().partition(" ")
        kind = instruction.upper()
        if kind == "FROM":
            image = next((word for word in rest.split() if not word.startswith("--")), "")
        elif kind == "ENTRYPOINT":
            entrypoint, words = _shell_form(rest), ""
        elif kind == "CMD":
            words = _shell_form(rest)
        lines += [_variable(rest) if kind in ("ENV", "ARG") else "", *[""] * line.count("\x00")]
    lines[_last_start(text)] = " ".join(["docker run", shlex.quote(image), entrypoint, words])
    return "\n".join(lines[1:])


def _last_start(text: str) -> int:
    """The number of the line of the last ENTRYPOINT or CMD."""
    return text.count("\n", 0, [*re.finditer(r"(?mi)^(CMD|ENTRYPOINT)\s", text)][-1].start()) + 1


def _variable(rest: str) -> str:
    name, equals, value = rest.strip().partition("=")
    if equals and not re.search(r"\s", name):
        return f"export {rest.strip()}"
    name, _, value = rest.strip().partition(" ")
    return f"export {name}={shlex.quote(value.strip())}" if value else ""


def _shell_form(rest: str) -> str:
    """The words of an instruction: a list in JSON, or a line of a shell as it is."""
    words = _texts(rest)
    return rest.strip() if words is None else shlex.join(words)


def _json_words(text: str) -> str:
    return "\n" * (len(text) - len(text.lstrip())) + shlex.join(_texts(text) or ())


def _texts(text: str) -> Sequence[str] | None:
    """The words of a list of texts in JSON; None for anything else, and for an empty list."""
    if not text.strip().startswith("["):
        return None
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return words if isinstance(words, list) and words and all(isinstance(word, str) for word in words) else None
