"""Flags of releases other than the one that a table is of (ksim/data/flags/NAME-older.toml)."""

from collections.abc import Mapping, Sequence
from functools import cache

from attrs import evolve, frozen

from ksim.deploy.commands.command import Word
from ksim.deploy.flags.meaning import shown
from ksim.deploy.flags.table import plain_name
from ksim.deploy.launches import Note
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError


@frozen
class Older:
    """A flag that another release has: in which, and what becomes of it."""

    name: str
    until: str
    """The last release that has it."""
    values: int = 1
    """How many words follow it; -1 for all up to the next flag."""
    instead: str = ""
    """The flag that it is taken as; with `=VALUE` where it has that value."""
    single: str = ""
    """The flag that it is taken as where it has one value."""
    why: str = ""
    """Why it has no effect, where nothing takes its place."""
    refused: str = ""
    """Why it is refused."""


@cache
def _older(program: str) -> Mapping[str, Older]:
    table = catalog.load("flags", f"{program}-older")
    return {name: Older(name, **row) for name, row in table["flags"].items()}


def names_of(program: str) -> Sequence[str]:
    """The names of these flags."""
    return [*_older(program)]


def without_older(program: str, words: Sequence[Word]) -> tuple[list[Word], list[Note]]:
    """*words* with flags of other releases in today's names, and what to say of them.

    Raises ConfigError for one that today's engine has nothing like.
    """
    kept: list[Word] = []
    notes: list[Note] = []
    place = 0
    while place < len(words):
        word = words[place]
        name, equals, value = word.text.partition("=")
        older = _older(program).get(plain_name(name))
        if older is None:
            kept.append(word)
            place += 1
            continue
        own = [evolve(word, text=value)] if equals else _following(words[place + 1:], older.values)
        place += 1 if equals else 1 + len(own)
        kept += _instead(older, word, own)
        notes.append(_note(older, word, own))
    return kept, notes


def _following(words: Sequence[Word], most: int) -> list[Word]:
    values: list[Word] = []
    for word in words[:most] if most >= 0 else words:
        if word.text.startswith("-"):
            break
        values.append(word)
    return values


def _instead(older: Older, word: Word, values: Sequence[Word]) -> list[Word]:
    if older.refused:
        raise ConfigError(word.where, f"{shown(word.text)}: {older.refused} ({_release(older)})")
    if not older.instead:
        return []
    if "=" in older.instead or not values:
        return [Word(older.instead, word.where)]
    return [Word(_name(older, values), word.where), *values]


def _name(older: Older, values: Sequence[Word]) -> str:
    return older.single if older.single and len(values) == 1 else older.instead


def _note(older: Older, word: Word, values: Sequence[Word]) -> Note:
    what = f"taken as {_name(older, values)}" if older.instead else older.why
    said = shown(" ".join([word.text, *(value.text for value in values)]) if "=" not in word.text else word.text)
    return Note(word.where, said, f"a flag of another release ({_release(older)}): {what}")


def _release(older: Older) -> str:
    return f"up to {older.until}" if older.until else "of another build"
