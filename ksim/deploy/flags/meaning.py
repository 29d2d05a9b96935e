"""What flags mean to ksim: a setting, nothing, or more than it simulates (ksim/data/flags/NAME-meaning.toml).

Flags of other releases are read in today's names (ksim/data/flags/NAME-older.toml).
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from attrs import define, evolve, field, frozen

from ksim.deploy.commands import Note, Word
from ksim.deploy.flags.given import Given, plain_name
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError


@frozen
class FlagGroup:
    """Flags for which one reason holds; their names may be patterns."""

    why: str
    flags: Sequence[str]

    def has(self, dest: str) -> bool:
        return any(fnmatchcase(dest, pattern) for pattern in self.flags)


@frozen
class Values:
    """The values of a flag that ksim has, by its own names; `differ` says where that is not quite the same."""

    key: str
    known: Mapping[str, Any]
    differ: Mapping[str, str] = field(factory=dict)


@frozen
class Meaning:
    """What the flags of one program mean."""

    keys: Mapping[str, str]
    """Settings by flag."""
    values: Mapping[str, Values]
    idle: Sequence[FlagGroup]
    refused: Sequence[FlagGroup]
    refused_values: Mapping[str, str]

    def is_idle(self, dest: str) -> bool:
        """Whether a flag changes nothing here, whatever its value; a port tells engines apart, and else nothing."""
        return dest == "port" or self.kinds(dest) == ["idle"]

    def kinds(self, dest: str) -> list[str]:
        """Which of these say something of a flag; a reason to refuse it counts more than one to pass over it."""
        return [kind for kind, says in (
            ("simulated", dest in self.keys or dest in self.values),
            ("idle", any(group.has(dest) for group in self.idle)),
            ("refused", any(group.has(dest) for group in self.refused))) if says]


@cache
def meaning(name: str) -> Meaning:
    """The content of ksim/data/flags/NAME-meaning.toml."""
    table = catalog.load("flags", f"{name}-meaning")
    return Meaning({**{key: key for key in table.get("same", ())}, **table.get("keys", {})},
                   {dest: Values(**values) for dest, values in table.get("values", {}).items()},
                   [FlagGroup(**group) for group in table.get("idle", ())],
                   [FlagGroup(**group) for group in table.get("refused", ())], table.get("refused_values", {}))


def _flat(serve: Mapping[str, Any]) -> dict[str, Any]:
    """*serve*, and the settings of SGLang's scheduler as `sglang.KEY`."""
    return {**serve, **{f"sglang.{key}": value for key, value in serve.get("sglang", {}).items()}}


#: What sets the settings of one flag that takes more than a value.
Handler = Callable[["FlagReading", Given], None]


@define
class FlagReading:
    """What the flags of one line amount to, while they are read one by one."""

    meaning: Meaning
    handlers: Mapping[str, Handler]
    serve: dict[str, Any] = field(factory=dict)
    idle: list[Note] = field(factory=list)
    remarks: list[Note] = field(factory=list)
    places: dict[str, Given] = field(factory=dict)
    """The flag that each setting comes from."""

    def take(self, given: Sequence[Given]) -> None:
        """Take in *given* flags; raises ConfigError for those that are refused."""
        for one in given:
            before = _flat(self.serve)
            self._take(one)
            self.places |= {key: one for key, value in _flat(self.serve).items() if before.get(key) is not value}

    def _take(self, one: Given) -> None:
        if one.open:
            self.pass_over(one, "has no effect, and the text leaves its value open")
        elif one.dest in self.handlers:
            self.handlers[one.dest](self, one)
        elif one.dest in self.meaning.keys:
            self.set(self.meaning.keys[one.dest], one.value)
        elif one.dest in self.meaning.values:
            self._value(one)
        else:
            self._without_setting(one)

    def set(self, key: str, value: Any) -> None:
        """Set the setting *key*, which may be one of a table, such as `sglang.page_size`."""
        table, _, inner = key.rpartition(".")
        if table:
            self.serve[table] = {**self.serve.get(table, {}), inner: value}
        else:
            self.serve[key] = value

    def _value(self, given: Given) -> None:
        values, text = self.meaning.values[given.dest], str(given.value)
        if text not in values.known:
            why = self.meaning.refused_values.get(given.dest, "that value is not simulated")
            raise ConfigError(given.where, f"{given.said}: {why}; ksim has {', '.join(values.known)}")
        if values.key:
            self.set(values.key, values.known[text])
        if text in values.differ:
            self.remark(given, values.differ[text])
        elif not values.key:
            self.pass_over(given, "ksim's only way")

    def _without_setting(self, given: Given) -> None:
        refused = next((group.why for group in self.meaning.refused if group.has(given.dest)), "")
        if refused and not is_default(given):
            raise ConfigError(given.where, f"{shown(given.said)}: {refused}")
        why = next((group.why for group in self.meaning.idle if group.has(given.dest)), "its default")
        self.pass_over(given, "its default, and the only value that is simulated" if refused else why)

    def pass_over(self, given: Given, why: str) -> None:
        """Note that a flag has no effect here."""
        self.idle.append(Note(given.where, shown(given.said), why))

    def remark(self, given: Given, why: str) -> None:
        """Note that a flag means something else here."""
        self.remarks.append(Note(given.where, shown(given.said), why))


def read_with_others(reading: FlagReading, given: Given) -> None:
    """The handler of a flag that a program reads together with others."""


#: Flags whose values nobody else should read.
_SECRET = ("--api-key", "--hf-token", "--admin-api-key", "--ssl-keyfile-password")


def shown(said: str) -> str:
    """A flag's words for comments: without secrets, and not too long."""
    name, _, _ = said.partition("=")[0].partition(" ")
    if name.replace("_", "-") in _SECRET:
        return f"{name} ..."
    return said if len(said) <= 100 else f"{said[:97]}..."


def is_default(given: Given) -> bool:
    """Whether a flag is given its default, or what means none."""
    return given.value == given.flag.default or (given.flag.default is None and given.value in (None, {}, False))


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
    index = 0
    while index < len(words):
        word = words[index]
        name, equals, value = word.text.partition("=")
        older = _older(program).get(plain_name(name))
        if older is None:
            kept.append(word)
            index += 1
            continue
        own = [evolve(word, text=value)] if equals else _following(words[index + 1:], older.values)
        index += 1 if equals else 1 + len(own)
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
