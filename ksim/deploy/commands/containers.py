"""What `docker run` and its like wrap around a command: the image, variables, and options that change nothing."""

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from ksim.deploy.commands.command import Command, Word
from ksim.deploy.launches import Note
from ksim.foundation.errors import ConfigError

#: Programs whose `run` or `exec` starts a command in a container.
RUNTIMES = ("docker", "podman", "nerdctl")
#: Their options without a value.
_SWITCHES = {"--rm", "-i", "-t", "-d", "-it", "-ti", "-itd", "-dit", "-di", "-dt", "-P", "--init", "--privileged",
             "--detach", "--interactive", "--tty", "--publish-all", "--read-only", "--no-healthcheck", "-q", "--quiet",
             "-idt", "-tid", "-tdi", "--sig-proxy", "--oom-kill-disable", "--rmi", "--replace"}
_ENVIRONMENT = ("-e", "--env")
_WHY = "how the container runs changes no schedule"


@frozen
class Contained:
    """A command inside a container, and the options around it."""

    command: Command
    idle: tuple[Note, ...]


def unwrapped(command: Command) -> Contained:
    """*command* without the container around it, if there is one; raises ConfigError for one without an image."""
    names = [word.text for word in command.words[:3]]
    verb = next((name for name in names[1:] if name in ("run", "exec")), "")
    if not names or names[0] not in RUNTIMES or not verb:
        return Contained(command, ())
    words = [*command.words[names.index(verb) + 1:]]
    environment, idle = dict(command.environment), []
    entrypoint: Word | None = None
    while words and words[0].text.startswith("-"):
        option, value, words = _option(words)
        if option.text in _ENVIRONMENT and value is not None:
            environment |= _variable(value, environment)
        elif option.text == "--entrypoint" and value is not None:
            entrypoint = value
        else:
            idle.append(Note(option.where, " ".join(word.text for word in (option, value) if word), _WHY))
    if not words:
        raise ConfigError(command.where, f"{names[0]} run names no image")
    inner = ([] if entrypoint is None else [entrypoint]) + words[1:]
    contained = evolve(command, words=tuple(inner), environment=environment, image=words[0])
    return Contained(contained, tuple(idle))


def _option(words: Sequence[Word]) -> tuple[Word, Word | None, list[Word]]:
    """The first option of *words*, its value, and what follows."""
    first = words[0]
    name, equals, value = first.text.partition("=")
    if equals:
        return Word(name, first.where), Word(value, first.where), [*words[1:]]
    if name in _SWITCHES:
        return first, None, [*words[1:]]
    if len(name) > 2 and name[:2] in ("-e", "-p", "-v", "-u", "-w") and not name.startswith("--"):
        return Word(name[:2], first.where), Word(name[2:], first.where), [*words[1:]]
    return first, (words[1] if len(words) > 1 else None), [*words[2:]]


def _variable(value: Word, known: Mapping[str, Word]) -> dict[str, Word]:
    name, equals, text = value.text.partition("=")
    return {name: Word(text, value.where)} if equals else {name: known[name]} if name in known else {}
