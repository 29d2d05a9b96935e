"""Lines that start engines: of a shell, of files that start one program, and as calls in Python."""

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from ksim.deploy.commands import (
    MENTIONS,
    Deployed,
    EngineLaunch,
    ImportOptions,
    Note,
    ShellCommand,
    Word,
    launch_of,
    program_of,
    runtime_at,
    script_place,
    unwrapped,
)
from ksim.deploy.flags.given import flag_table
from ksim.deploy.launching import tag_of
from ksim.deploy.proxies import Proxy, proxy_of, with_proxies
from ksim.deploy.shell.script import Script, Simple
from ksim.deploy.texts import Pasted
from ksim.deploy.workload import Bench, bench_beside
from ksim.foundation.errors import ConfigError

__all__ = ["Lines", "Units", "PythonCalls"]


_AGAIN = "runs the whole text again; paste the line that starts the engine"


class Lines:
    """Takes the simple commands of a script apart, and starts those that are engines."""

    def recognises(self, pasted: Pasted) -> bool:
        """Whether some command starts an engine; also for what may have been meant as one."""
        return any(_is_engine(line.split()) for line in pasted.text.replace("\\\n", " ").split("\n")) or any(
            word in pasted.text for word in ("vllm", "sglang", "trtllm"))

    def read(self, pasted: Pasted, wanted: ImportOptions) -> Deployed:
        """The engines that the script starts, and the proxies before them."""
        files: dict[str, str] = {}
        launches: list[EngineLaunch] = []
        proxies: list[Proxy] = []
        for simple in Script(pasted, wanted.environment).commands():
            simple.keep_document(files)
            command = _command(simple, pasted, files)
            inner = _script_of(command)
            if inner is not None and inner.strip() == pasted.text.strip():
                raise ConfigError(command.where, next((word.unknown for word in command.words if word.unknown), _AGAIN))
            if inner is not None:
                simple.check_unconditional(command.where)
                # Lines before it keep the numbers of its own.
                text = "\n" * (simple.line - 1) + inner
                further = self.read(evolve(pasted, text=text), _with_environment(wanted, command))
                launches += [evolve(launch, idle=(*unwrapped(command).idle, *launch.idle))
                             for launch in further.launches]
            elif (proxy := proxy_of(command)) is not None:
                proxies.append(proxy)
            elif _is_engine([word.text for word in simple.words]):
                launches.append(_launched(command, simple, wanted))
        if not launches:
            raise ConfigError(pasted.source or "the text", _no_engine(pasted.text))
        load = Bench() if wanted.bench else bench_beside(pasted, wanted)
        return with_proxies(Deployed(tuple(launches), load.scenario, tuple(load.idle), tuple(load.remarks)), proxies)


def _no_engine(text: str) -> str:
    """Why a text that mentions an engine starts none."""
    if any(client in text for client in ("bench serve", "bench_serving", "benchmark_serving")):
        return "is the line of a client: give it with --bench, and the line that starts the engine as the text"
    said = next((line.strip() for line in text.split("\n") if re.search("vllm|sglang|trtllm", line)), "")
    comment = " (a comment, to a shell)" if said.startswith("#") else ""
    return (f"{said[:60]!r}{comment} starts no engine; expected `vllm serve MODEL ...`, `python -m sglang.launch_server"
            f" ...` or `trtllm-serve MODEL ...`")


def _script_of(command: ShellCommand) -> str | None:
    """The text of `bash -c TEXT`, of `ssh HOST TEXT` or `tmux send-keys TEXT`, in a container or not, if it starts an
    engine.
    """
    words = [word.text for word in unwrapped(command).command.words]
    if words[:1] and words[0] in MENTIONS:
        return None
    shell, started = script_place(words), _is_engine(words)
    return next((text for index, text in enumerate(words) if re.search(r"\s", text) and (index == shell or not started)
                 and any(_is_engine(line.split()) for line in _simple_lines(text))), None)


def _simple_lines(text: str) -> list[str]:
    return re.split(r"\n|&&|;|\|\|", text.replace("\\\n", " "))


def _with_environment(wanted: ImportOptions, command: ShellCommand) -> ImportOptions:
    """*wanted* with the variables that a container gives to its script."""
    inner = unwrapped(command).command
    given = {name: word.text for name, word in inner.environment.items()}
    return evolve(wanted, environment={**wanted.environment, **given},
                  version=wanted.version or (tag_of(inner.image.text) if inner.image else None))


def _command(simple: Simple, pasted: Pasted, files: dict[str, str]) -> ShellCommand:
    return ShellCommand(simple.words, pasted.at(simple.line), {**simple.exported, **simple.assigned}, files=dict(files),
                        folder=pasted.folder)


def _launched(command: ShellCommand, simple: Simple, wanted: ImportOptions) -> EngineLaunch:
    simple.check_unconditional(command.where)
    contained = unwrapped(command)
    launch = launch_of(contained.command, wanted)
    return evolve(launch, idle=(*contained.idle, *launch.idle))


def _is_engine(names: list[str]) -> bool:
    """Whether a command of these words starts an engine, as far as can be told before variables are filled in."""
    if (start := runtime_at(names)) is not None:
        signs = ("vllm", "sglang", "tensorrt", "trtllm")
        return any(sign in name for name in names[start:] for sign in signs)
    return program_of(ShellCommand.of(names, "")) is not None


class Units:
    """Writes the file out as a script, and lets the reader of lines read that."""

    def recognises(self, pasted: Pasted) -> bool:
        return _form(pasted.text) is not None

    def read(self, pasted: Pasted, wanted: ImportOptions) -> Deployed:
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
    return _json_words if _listed(text) else None


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
    words = _listed(rest)
    return rest.strip() if words is None else shlex.join(words)


def _json_words(text: str) -> str:
    return "\n" * (len(text) - len(text.lstrip())) + shlex.join(_listed(text) or ())


def _listed(text: str) -> Sequence[str] | None:
    """The words of a list of texts in JSON; None for anything else, and for an empty list."""
    if not text.strip().startswith("["):
        return None
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return words if isinstance(words, list) and words and all(isinstance(word, str) for word in words) else None


_LOGGED = re.compile(r"non-default args: (\{.*\})\s*$", re.MULTILINE)
_RELEASE = re.compile(r"(?:vLLM API server version|LLM engine \(v)\s*v?(\d+\.\d+\.\d+)")
#: Classes whose arguments are the flags of an engine, and the words that start that engine.
_CLASSES = {**dict.fromkeys(("LLM", "EngineArgs", "AsyncEngineArgs"), ("vllm", "serve")),
            **dict.fromkeys(("Engine", "ServerArgs"), ("python", "-m", "sglang.launch_server"))}
_CALL = re.compile(rf"\b({'|'.join(_CLASSES)})\(")
_OFFLINE = ("simulated as the server that has these flags; where they do not say max_num_batched_tokens, vLLM's class"
            " LLM takes up to four times as many as its server")
#: What the flag of the model is called, by the first of these words.
_MODEL = {"vllm": "--model", "python": "--model-path"}


class PythonCalls:
    """Writes the arguments out as flags, and lets the engine's program read those."""

    def recognises(self, pasted: Pasted) -> bool:
        imports = re.search(r"(?m)^\s*(from|import) (vllm|sglang)\b", pasted.text)
        return bool(_LOGGED.search(pasted.text)) or bool(imports and _CALL.search(pasted.text))

    def read(self, pasted: Pasted, wanted: ImportOptions) -> Deployed:
        """The engines; raises ConfigError for arguments that only Python would know."""
        logged = _LOGGED.search(pasted.text)
        commands = [_logged(logged, pasted)] if logged else [*_called(pasted)]
        release = _RELEASE.search(pasted.text)
        if release and not wanted.version:
            wanted = evolve(wanted, version=release[1])
        launches = tuple(launch_of(command, wanted) for command in commands)
        return Deployed(launches, remarks=() if logged else tuple(
            Note(command.where, "an engine within Python", _OFFLINE) for command in commands))


def _logged(match: "re.Match[str]", pasted: Pasted) -> ShellCommand:
    where = pasted.at(pasted.text.count("\n", 0, match.start()) + 1)
    try:
        values = ast.literal_eval(match[1])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ConfigError(where, "these arguments hold values that only Python knows; paste the line that starts the"
                                 " engine") from None
    named = {key: value for key, value in values.items() if key != "model_tag"}
    if "model_tag" in values:
        named.setdefault("model", values["model_tag"])
    return _as_line(("vllm", "serve"), {key: (value, where) for key, value in named.items()}, where, pasted)


def _called(pasted: Pasted) -> Iterator[ShellCommand]:
    """The commands that calls of an engine's class stand for."""
    try:
        tree = ast.parse(pasted.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        raise ConfigError(pasted.at(line), "is not valid Python; paste the whole script, or the line that starts the"
                                           " engine") from None
    known = {node.targets[0].id: node.value for node in ast.walk(tree)
             if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
    for node in ast.walk(tree):
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name in _CLASSES:
            values = {key: (_value_of(value, known, pasted, key), pasted.at(value.lineno, value.col_offset + 1))
                      for key, value in _arguments(node, pasted)}
            yield _as_line(_CLASSES[name], values, pasted.at(node.lineno), pasted)


def _arguments(call: ast.Call, pasted: Pasted) -> Iterator[tuple[str, ast.expr]]:
    yield from (("model", value) for value in call.args[:1])
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ConfigError(pasted.at(call.lineno), "passes arguments by **; write them out")
        yield keyword.arg, keyword.value


def _value_of(node: ast.expr, known: Mapping[str, ast.expr], pasted: Pasted, key: str) -> Any:
    node = known.get(node.id, node) if isinstance(node, ast.Name) else node
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ConfigError(pasted.at(node.lineno, node.col_offset + 1),
                          f"{key} is what Python would have to run to know; write its value in its place") from None


def _as_line(start: tuple[str, ...], values: Mapping[str, tuple[Any, str]], where: str, pasted: Pasted) -> ShellCommand:
    words = [Word(text, where) for text in start]
    for key, (value, index) in values.items():
        flag = _MODEL[start[0]] if key in ("model", "model_path") else "--" + key.replace("_", "-")
        words += [Word(text, index) for text in ([_off(flag)] if value is False else _flag_words(flag, value)) if text]
    return ShellCommand(tuple(words), where, folder=pasted.folder)


def _off(flag: str) -> str:
    """The name that switches a *flag* off; empty where it is off by itself."""
    known = flag_table("vllm", "vLLM").by_name.get(flag)
    return known[0].off[0] if known is not None and known[0].off else ""


def _flag_words(flag: str, value: Any) -> list[str]:
    """A flag with its value, as a line has them."""
    if value is None:
        return []
    if value is True:
        return [flag]
    if isinstance(value, (list, tuple)):
        return [flag, *(item if isinstance(item, str) else json.dumps(item) for item in value)]
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
