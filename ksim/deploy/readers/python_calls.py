"""Python that makes an engine, `LLM(model=..., tensor_parallel_size=2)`, and the arguments that vLLM's log repeats."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve

from ksim.deploy.commands import Command, Word, launch_of
from ksim.deploy.flags.given import flag_table
from ksim.deploy.launches import Deployed, Note, Wanted
from ksim.deploy.texts import Pasted
from ksim.foundation.errors import ConfigError

__all__ = ["PythonCalls"]

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

    def read(self, pasted: Pasted, wanted: Wanted) -> Deployed:
        """The engines; raises ConfigError for arguments that only Python would know."""
        logged = _LOGGED.search(pasted.text)
        commands = [_logged(logged, pasted)] if logged else [*_called(pasted)]
        release = _RELEASE.search(pasted.text)
        if release and not wanted.version:
            wanted = evolve(wanted, version=release[1])
        launches = tuple(launch_of(command, wanted) for command in commands)
        return Deployed(launches, remarks=() if logged else tuple(
            Note(command.where, "an engine within Python", _OFFLINE) for command in commands))


def _logged(match: "re.Match[str]", pasted: Pasted) -> Command:
    where = pasted.at(pasted.text.count("\n", 0, match.start()) + 1)
    try:
        values = ast.literal_eval(match[1])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ConfigError(where, "these arguments hold values that only Python knows; paste the line that starts the"
                                 " engine") from None
    named = {key: value for key, value in values.items() if key != "model_tag"}
    if "model_tag" in values:
        named.setdefault("model", values["model_tag"])
    return _command(("vllm", "serve"), {key: (value, where) for key, value in named.items()}, where, pasted)


def _called(pasted: Pasted) -> Iterator[Command]:
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
            values = {key: (_value(value, known, pasted, key), pasted.at(value.lineno, value.col_offset + 1))
                      for key, value in _arguments(node, pasted)}
            yield _command(_CLASSES[name], values, pasted.at(node.lineno), pasted)


def _arguments(call: ast.Call, pasted: Pasted) -> Iterator[tuple[str, ast.expr]]:
    yield from (("model", value) for value in call.args[:1])
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ConfigError(pasted.at(call.lineno), "passes arguments by **; write them out")
        yield keyword.arg, keyword.value


def _value(node: ast.expr, known: Mapping[str, ast.expr], pasted: Pasted, key: str) -> Any:
    node = known.get(node.id, node) if isinstance(node, ast.Name) else node
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ConfigError(pasted.at(node.lineno, node.col_offset + 1),
                          f"{key} is what Python would have to run to know; write its value in its place") from None


def _command(start: tuple[str, ...], values: Mapping[str, tuple[Any, str]], where: str, pasted: Pasted) -> Command:
    words = [Word(text, where) for text in start]
    for key, (value, place) in values.items():
        flag = _MODEL[start[0]] if key in ("model", "model_path") else "--" + key.replace("_", "-")
        words += [Word(text, place) for text in ([_off(flag)] if value is False else _words(flag, value)) if text]
    return Command(tuple(words), where, folder=pasted.folder)


def _off(flag: str) -> str:
    """The name that switches a *flag* off; empty where it is off by itself."""
    known = flag_table("vllm", "vLLM").by_name.get(flag)
    return known[0].off[0] if known is not None and known[0].off else ""


def _words(flag: str, value: Any) -> list[str]:
    """A flag with its value, as a line has them."""
    if value is None:
        return []
    if value is True:
        return [flag]
    if isinstance(value, (list, tuple)):
        return [flag, *(item if isinstance(item, str) else json.dumps(item) for item in value)]
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
