"""Commands that a text runs, and what becomes of one that starts an engine: EngineLaunch, Deployed, Imported.

A command has its words, its environment, and the image that it runs in; `unwrapped` takes `docker run` away.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

if TYPE_CHECKING:
    from ksim.deploy.texts import Entry


@frozen
class Note:
    """A remark on a *word* of the text, which stands at *where*."""

    where: str
    word: str
    why: str


@frozen
class Maker:
    """The object that makes the pods of engines, which an autoscaler names; `replicas` is None where it says none.

    `strategy` is a Deployment's, `pod` the spec of its pods, and `container` the one that the engine runs in.
    `labels` are those of its pods, None where an engine needs several.
    """

    where: str
    kind: str
    name: str
    replicas: int | None = None
    strategy: "Entry | None" = None
    pod: "Entry | None" = None
    container: "Entry | None" = None
    labels: "Entry | None" = None


@frozen
class EngineLaunch:
    """Engines that one command starts: what a scenario says of a pool."""

    where: str
    """The place of the command, for messages: "line 3"."""
    engine: str
    """A release of ksim/data/engines."""
    model: str
    """A catalogue name, or the path of a config.json or of its folder."""
    serve: Mapping[str, Any] = field(factory=dict)
    """Settings as `serve` of a scenario has them."""
    role: str = ""
    """prefill, decode or both; empty where the command does not say."""
    replicas: int = 1
    """How often it is started."""
    name: str = ""
    """What the pool is called; empty for a name made from its role."""
    hardware: Mapping[str, Any] = field(factory=dict)
    """`gpu`, `system`, `nodes` and `host`, as far as the text says them."""
    scenario: Mapping[str, Any] = field(factory=dict)
    """Further keys of the scenario, such as `seed` or `router`."""
    free_share: float | None = None
    """TensorRT-LLM's share, for KV, of the memory that weights leave free; in place of gpu_memory_utilization."""
    ports: tuple[int, ...] = ()
    """Where it listens, by which a proxy's line names it."""
    maker: Maker | None = None
    """What makes its pods, where a manifest starts it."""
    pool: Mapping[str, Any] = field(factory=dict)
    """Further keys of its pool, such as `autoscaler`."""
    idle: tuple[Note, ...] = ()
    """Words without an effect here."""
    remarks: tuple[Note, ...] = ()
    """Words whose meaning here differs, and what was assumed."""

    @property
    def sizes(self) -> dict[str, int]:
        """The parallel sizes that are not one."""
        keys = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        return {key: int(self.serve[key]) for key in keys if int(self.serve.get(key, 1)) > 1}

    @property
    def gpus(self) -> int:
        """The GPUs of one of these engines, and of all that it shares experts with."""
        return math.prod(self.sizes.values())


@frozen
class Deployed:
    """All that a text starts, and what it says of the whole."""

    launches: tuple[EngineLaunch, ...]
    scenario: Mapping[str, Any] = field(factory=dict)
    """Keys of the scenario beside the engines: `router`, `pair_router`, `flow_control`, `signals`."""
    idle: tuple[Note, ...] = ()
    remarks: tuple[Note, ...] = ()
    autoscalers: "tuple[Entry, ...]" = ()
    """The documents of autoscalers, whose targets may be in another text."""
    budgets: "tuple[Entry, ...]" = ()
    """The documents of disruption budgets, likewise."""
    others: frozenset[tuple[str, str]] = frozenset()
    """Kinds and names of objects that start no engine."""
    of_fleet: Mapping[str, Any] = field(factory=dict)
    """Further keys of the scenario if there are several engines, or may be."""

    @classmethod
    def of(cls, parts: "Iterable[Deployed]", scenario: Mapping[str, Any]) -> "Deployed":
        """All that *parts* of a text deploy, with the keys that *scenario* has."""
        parts = [*parts]
        return cls(tuple(launch for part in parts for launch in part.launches), scenario,
                   idle=tuple(note for part in parts for note in part.idle),
                   remarks=tuple(note for part in parts for note in part.remarks),
                   autoscalers=tuple(document for part in parts for document in part.autoscalers),
                   budgets=tuple(document for part in parts for document in part.budgets),
                   others=frozenset().union(*(part.others for part in parts)),
                   of_fleet={key: value for part in parts for key, value in part.of_fleet.items()})


@frozen
class ImportOptions:
    """What the user says beside the text; each overrides what the text says."""

    gpu: str | None = None
    system: str | None = None
    nodes: int | None = None
    version: str | None = None
    """Release of the engine, such as "0.33.0", in place of the image's tag."""
    model: str | None = None
    """Catalogue name, or path of a config.json, in place of what the text names."""
    roles: tuple[str, ...] = ()
    """prefill, decode or both, one for each launch in order."""
    environment: Mapping[str, str] = field(factory=dict)
    """Variables that the text uses and does not set."""
    bench: str | None = None
    """The line of a benchmark client, for the workload."""


@frozen
class Imported:
    """A scenario as a table, with the notes for its header."""

    table: Mapping[str, Any]
    idle: tuple[Note, ...] = ()
    remarks: tuple[Note, ...] = ()
    filled: tuple[Note, ...] = ()
    """Settings that the text leaves to the engine and that change the answer, with the engine's values."""


#: The folder of programs that start engines.
FOLDER = "deploy.programs"
#: Commands that mention a program, and do not start it.
MENTIONS = ("echo", "printf", "pip", "pip3", "apt", "apt-get", "grep", "pgrep", "pkill", "kill", "killall", "curl",
            "cat", "sed", "which", "git", "cd", "source", "hf", "huggingface-cli",
            "[[", "[", "test", "wget", "ls", "mkdir")
_SHELLS = ("sh", "bash", "dash", "ash", "zsh")
#: How far in a command its program stands behind others, such as numactl and mpirun with their options.
_REACH = 60


@frozen
class Word:
    """A word of a command, and its place in the text."""

    text: str
    where: str
    unknown: str = ""
    """Why a shell's variable in it has no value here, and what to do; whoever needs the word refuses it so."""

    def known(self) -> "Word":
        """This word; raises ConfigError where a variable in it has no value."""
        if self.unknown:
            raise ConfigError(self.where, self.unknown)
        return self


@frozen
class ShellCommand:
    """The words of a command, without the variables and the `docker run` before it."""

    words: tuple[Word, ...]
    where: str
    environment: Mapping[str, Word] = field(factory=dict)
    """Variables that the text sets for it."""
    image: Word | None = None
    """The container's image, whose name and tag tell the engine and its release."""
    files: Mapping[str, str] = field(factory=dict)
    """Files that the text itself writes, by path: those of here-documents, or of a ConfigMap."""
    folder: Path = Path()
    """Where relative paths lie."""

    @classmethod
    def of(cls, words: Sequence[str], where: str, **more: Any) -> "ShellCommand":
        """The command of *words* that all stand in one place, such as a container's `args`."""
        return cls(tuple(Word(text, where) for text in words), where, **more)


def behind(words: Sequence[Word], starts: Sequence[Sequence[str]]) -> list[Word] | None:
    """The words behind the first of *starts*, each the words that a program is started with; None without any."""
    if words and words[0].text in MENTIONS:
        return None
    texts = [word.text for word in words[:_REACH]]
    for index in range(len(texts)):
        for start in starts:
            if _is_start(texts[index:index + len(start)], start):
                return [*words[index + len(start):]]
    return None


def _is_start(texts: Sequence[str], start: Sequence[str]) -> bool:
    return len(texts) == len(start) and texts[0].rpartition("/")[2] == start[0] and [*texts[1:]] == [*start[1:]]


def script_place(words: Sequence[str]) -> int | None:
    """The place among *words* of TEXT in `sh -c TEXT`; None where they start no shell on a text."""
    shell = next((index for index, word in enumerate(words) if PurePosixPath(word).name in _SHELLS), None)
    if shell is None:
        return None
    behind_options = (index for index in range(shell + 1, len(words)) if not words[index].startswith(("-", "pipefail")))
    text = next(behind_options, None)
    return text if any(re.fullmatch(r"-\w*c", option) for option in words[shell + 1:text]) else None


def program_of(command: ShellCommand) -> Any:
    """The program that knows *command*, or None."""
    for name in catalog.names(FOLDER):
        program = catalog.find(FOLDER, name)()
        if program.recognises(command):
            return program
    return None


def launch_of(command: ShellCommand, wanted: ImportOptions) -> EngineLaunch:
    """What *command* starts; raises ConfigError for one that starts no engine, or not one that ksim simulates."""
    program = program_of(command)
    if program is None:
        said = " ".join(word.text for word in command.words[:3]) or "nothing"
        raise ConfigError(command.where, f"{said!r} starts no engine that ksim knows: expected `vllm serve MODEL`,"
                                         f" `python -m sglang.launch_server` or `trtllm-serve MODEL`")
    launch: EngineLaunch = program.launch(command, wanted)
    return launch


#: Programs whose `run` or `exec` starts a command in a container.
_RUNTIMES = ("docker", "podman", "nerdctl")
#: How far in a command they stand behind others, such as sudo and srun with their options.
_CONTAINERS_REACH = 30
#: Their options without a value.
_SWITCHES = {"--rm", "-i", "-t", "-d", "-it", "-ti", "-itd", "-dit", "-di", "-dt", "-P", "--init", "--privileged",
             "--detach", "--interactive", "--tty", "--publish-all", "--read-only", "--no-healthcheck", "-q", "--quiet",
             "-idt", "-tid", "-tdi", "--sig-proxy", "--oom-kill-disable", "--rmi", "--replace"}
_ENVIRONMENT = ("-e", "--env")
_WHY = "how the container runs changes no schedule"


@frozen
class Contained:
    """A command inside a container, and the options around it."""

    command: ShellCommand
    idle: tuple[Note, ...]


def unwrapped(command: ShellCommand) -> Contained:
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
    for index, name in enumerate(names[:0 if names[:1] and names[0] in MENTIONS else _CONTAINERS_REACH]):
        if name.rpartition("/")[2] in _RUNTIMES and {"run", "exec"} & {*names[index + 1:index + 3]}:
            return index
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
