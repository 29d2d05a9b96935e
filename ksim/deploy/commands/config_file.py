"""Files of flags, such as `--config serve.yaml`: keys are flags without their dashes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from ksim.deploy.commands.command import Command, Word
from ksim.deploy.shell.script import CONDITIONAL
from ksim.deploy.texts.documents import documents
from ksim.deploy.texts.entries import Entry
from ksim.deploy.texts.pasted import Pasted
from ksim.foundation.errors import ConfigError, DataError


def with_config_file(command: Command, words: Sequence[Word], flag: str = "--config") -> list[Word]:
    """*words* with those of the file that *flag* names before them, as flags of the line come last and count.

    Raises ConfigError for a file that is not there, or is no table.
    """
    for place, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name == flag:
            path = evolve(word, text=value) if equals else (*words[place + 1:place + 2], Word("", word.where))[0]
            rest = [*words[:place], *words[place + (1 if equals else 2):]]
            first = [rest.pop(0)] if rest and not rest[0].text.startswith("-") else []
            return [*first, *_words(keys_in(command, path.known(), flag)), *rest]
    return [*words]


def keys_in(command: Command, path: Word, flag: str) -> Mapping[str, Entry]:
    """The keys of a YAML file that the text writes, or that lies beside it.

    Raises ConfigError for a file that is not there, or holds no keys and values, and DataError for one that is no YAML.
    """
    read = documents(Pasted(_text(command, path, flag), path.text))
    if len(read) > 1:
        raise read[1].error(f"is a second document; a file for {flag} has one")
    return read[0].table if read else {}


def _text(command: Command, path: Word, flag: str) -> str:
    if not path.text:
        raise ConfigError(path.where, f"{flag} names no file")
    for name, text in command.files.items():
        if Path(name).name == Path(path.text).name:
            return _unconditional(text, path)
    try:
        return Pasted.of_file(command.folder / path.text).text
    except DataError as error:
        raise ConfigError(path.where, f"{flag} {path.text}: {error.args[1]}; it is read from the folder of the text, or"
                                      f" from a here-document in it") from None


def _unconditional(text: str, path: Word) -> str:
    if not text.startswith(CONDITIONAL):
        return text
    word = text.removeprefix(CONDITIONAL)
    raise ConfigError(path.where, f"{path.text} is written under `{word}`, and whether it is, is what a shell would"
                                  f" have to find out; paste what runs, without the condition")


def _words(keys: Mapping[str, Entry]) -> Iterator[Word]:
    """The flags that the keys of a file are, as words."""
    for key, value in keys.items():
        yield from flag_words(key, value)


def flag_words(key: str, value: Entry, false: str = "no-") -> list[Word]:
    """The flag that a *key* of YAML stands for; that of a false one begins with *false*, or is left out."""
    if value.plain is False and not false:
        return []
    return [Word(text, value.place) for text in _flag(key, value.plain, false)]


def _flag(key: str, value: Any, false: str) -> list[str]:
    name = f"--{key.replace('_', '-')}"
    if isinstance(value, bool):
        return [name] if value else [f"--{false}{name[2:]}"]
    if isinstance(value, dict):
        return [name, _json(value)]
    if isinstance(value, list):
        return [name, *(_json(part) if isinstance(part, dict) else str(part) for part in value)] if value else []
    return [] if value is None else [f"{name}={value}"]


def _json(value: dict[Any, Any]) -> str:
    """*value* in JSON; what YAML has beyond that, such as dates, becomes a text."""
    return json.dumps({str(key): each for key, each in value.items()}, default=str)
