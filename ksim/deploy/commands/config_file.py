"""Files of flags, such as `--config serve.yaml`: keys are flags without their dashes."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ksim.deploy.commands.command import Command, Word
from ksim.foundation.errors import ConfigError, DataError

#: What stands for the content of a file that is written under a condition.
CONDITIONAL = "\0"


def with_config_file(command: Command, words: Sequence[Word], flag: str = "--config") -> list[Word]:
    """*words* with those of the file that *flag* names before them, as flags of the line come last and count.

    Raises ConfigError for a file that is not there, or is no table.
    """
    for place, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name == flag:
            path = value if equals else words[place + 1].text if place + 1 < len(words) else ""
            rest = [*words[:place], *words[place + (1 if equals else 2):]]
            first = [rest.pop(0)] if rest and not rest[0].text.startswith("-") else []
            return [*first, *_words(content(command, Word(path, word.where), flag), path), *rest]
    return [*words]


def content(command: Command, path: Word, flag: str) -> Any:
    """The YAML of a file that the text writes, or that lies beside it."""
    try:
        return yaml.compose(_text(command, path, flag), Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise DataError(f"{path.text}{line}", f"is no YAML: {getattr(error, 'problem', None) or error}") from None


def _text(command: Command, path: Word, flag: str) -> str:
    if not path.text:
        raise ConfigError(path.where, f"{flag} names no file")
    for name, text in command.files.items():
        if Path(name).name == Path(path.text).name:
            return _unconditional(text, path)
    file = command.folder / path.text
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "is not text in UTF-8"
        raise ConfigError(path.where, f"{flag} {path.text}: {said}; it is read from the folder of the text, or from a"
                                      f" here-document in it") from None


def _unconditional(text: str, path: Word) -> str:
    if not text.startswith(CONDITIONAL):
        return text
    word = text.removeprefix(CONDITIONAL)
    raise ConfigError(path.where, f"{path.text} is written under `{word}`, and whether it is, is what a shell would"
                                  f" have to find out; paste what runs, without the condition")


def _words(node: Any, path: str) -> Iterator[Word]:
    """The flags of a mapping, as words."""
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        raise DataError(f"{path}:{node.start_mark.line + 1}", "holds no table of flags and values")
    for key, value in node.value:
        where = f"{path}:{key.start_mark.line + 1}"
        yield from (Word(text, where) for text in _flag(str(key.value), plain(value)))


def _flag(key: str, value: Any) -> list[str]:
    name = f"--{key.replace('_', '-')}"
    if isinstance(value, bool):
        return [name] if value else [f"--no-{name[2:]}"]
    if isinstance(value, dict):
        return [name, json.dumps(value)]
    if isinstance(value, list):
        return [name, *(json.dumps(part) if isinstance(part, dict) else str(part) for part in value)] if value else []
    return [] if value is None else [f"{name}={value}"]


def plain(node: Any) -> Any:
    """The value of a YAML *node*."""
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()
