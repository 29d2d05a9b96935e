"""What `docker run` and its like wrap around a command: the image, variables, and options that change nothing."""

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from ksim.deploy.commands.command import MENTIONS, Command, Word
from ksim.deploy.launches import Note
from ksim.foundation.errors import ConfigError

#: Programs whose `run` or `exec` starts a command in a container.
_RUNTIMES = ("docker", "podman", "nerdctl")
#: How far in a command they stand behind others, such as sudo and srun with their options.
_REACH = 30
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
    start = runtime_at([word.text for word in command.words])
    if start is None:
        return Contained(command, ())
    names = [word.text for word in command.words[start:start + 3]]
    verb = "run" if "run" in names else "exec"
    words = [*command.words[start + names.index(verb) + 1:]]
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
    contained = evolve(command, words=tuple(inner), environment=environment, image=words[0].known())
    return Contained(contained, tuple(idle))


def runtime_at(names: Sequence[str]) -> int | None:
    """The place of `docker run`, also behind programs such as sudo and srun, among the words of a command."""
    for place, name in enumerate(names[:0 if names[:1] and names[0] in MENTIONS else _REACH]):
        if name.rpartition("/")[2] in _RUNTIMES and {"run", "exec"} & {*names[place + 1:place + 3]}:
            return place
    return None


def _option(words: Sequence[Word]) -> tuple[Word, Word | None, list[Word]]:
    """The first option of *words*, its value, and what follows."""
    first = words[0]
    name, equals, value = first.text.partition("=")
    if equals:
        return Word(name, first.where), evolve(first, text=value), [*words[1:]]
    if name in _SWITCHES:
        return first, None, [*words[1:]]
    if len(name) > 2 and name[:2] in ("-e", "-p", "-v", "-u", "-w") and not name.startswith("--"):
        return Word(name[:2], first.where), evolve(first, text=name[2:]), [*words[1:]]
    return first, (words[1] if len(words) > 1 else None), [*words[2:]]


def _variable(value: Word, known: Mapping[str, Word]) -> dict[str, Word]:
    name, equals, text = value.text.partition("=")
    return {name: evolve(value, text=text)} if equals else {name: known[name]} if name in known else {}
