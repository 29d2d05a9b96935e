"""Flags of a line, read as the program's own parser reads them: names, their beginnings, values, numbers and tables."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from attrs import define, evolve, field, fields_dict, frozen

from ksim.deploy.commands import Word
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, did_you_mean

_FOLDER = "flags"


@frozen
class Flag:
    """One flag: its names, those that switch it off, and what follows it."""

    dest: str
    names: Sequence[str]
    kind: str
    """switch, or what a value is: text, integer, number, readable, json."""
    off: Sequence[str] = ()
    nargs: str | int | None = None
    choices: Sequence[Any] = ()
    default: Any = None
    until: str = ""
    """The last release that has it; empty for one that the newest has."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return self.names[0]


@frozen
class FlagTable:
    """The flags of a release, by every name."""

    program: str
    release: str
    flags: Sequence[Flag]
    by_name: Mapping[str, tuple[Flag, bool]] = field(init=False)
    """The flag that a name means, and whether the name switches it on."""

    @by_name.default
    def _by_name(self) -> Mapping[str, tuple[Flag, bool]]:
        on = {plain_name(name): (flag, True) for flag in self.flags for name in flag.names}
        return {plain_name(name): (flag, False) for flag in self.flags for name in flag.off} | on

    def find(self, name: str, where: str, further: Iterable[str] = ()) -> tuple[Flag, bool]:
        """The flag that *name*, or its beginning, means.

        Raises ConfigError for one that there is not, with the nearest, of *further* names too.
        """
        plain = plain_name(name)
        if plain in self.by_name:
            return self.by_name[plain]
        begun = {id(flag): (flag, on) for known, (flag, on) in self.by_name.items()
                 if plain.startswith("--") and len(plain) > 2 and known.startswith(plain)}
        if len(begun) == 1:
            return next(iter(begun.values()))
        raise ConfigError(where, f"{name}: {self._unknown(plain, [flag.name for flag, _ in begun.values()], further)}")

    def _unknown(self, plain: str, begun: Sequence[str], further: Iterable[str]) -> str:
        if begun:
            shown = ", ".join(sorted(begun)[:6]) + (", and others" if len(begun) > 6 else "")
            return f"could mean {shown}; write it out"
        hint = did_you_mean(plain, [*self.by_name, *map(plain_name, further)])
        return f"{self.program} {self.release} has no such flag{hint}"


def plain_name(name: str) -> str:
    """*name* with dashes, as parsers compare names of two dashes."""
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name


@cache
def flag_table(name: str, program: str) -> FlagTable:
    """The table ksim/data/flags/NAME.json; *program* is what it is called in messages."""
    table = catalog.load(_FOLDER, name)
    return FlagTable(program, table["release"], [Flag(**flag) for flag in table["flags"]])


_READABLE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def integer(text: str) -> int:
    """The whole number *text*; raises ValueError with the reason."""
    try:
        return int(text.strip())
    except ValueError:
        raise ValueError(f"expected a whole number, not {text!r}") from None


def number(text: str) -> float | int:
    """The number *text*; raises ValueError with the reason."""
    try:
        return int(text) if re.fullmatch(r"\s*[+-]?\d+\s*", text) else float(text)
    except ValueError:
        raise ValueError(f"expected a number, not {text!r}") from None


def readable(text: str) -> int:
    """A whole number such as 4096, 32k (32,000), 32K (32,768) or 25.6k, as vLLM reads them; auto is -1."""
    if text.strip().lower() == "auto":
        return -1
    match = _READABLE.fullmatch(text.strip())
    if match is None:
        return integer(text)
    digits, unit = match.groups()
    if unit in _DECIMAL:
        return int(float(digits) * _DECIMAL[unit])
    if "." in digits:
        raise ValueError(f"{text!r} has a fraction of a binary unit; did you mean {digits}{unit.lower()}?")
    return int(digits) * _BINARY[unit]


def json_of(text: str) -> Any:
    """The JSON value of *text*, in which numbers may be written as `readable` ones; raises ValueError."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    parts[::2] = [re.sub(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", lambda match: str(readable(match[0])), part)
                  for part in parts[::2]]
    try:
        return json.loads("".join(parts))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not valid JSON: {error}") from None


def loose(text: str) -> Any:
    """The value behind a dotted key: JSON, a readable number, or the text itself."""
    for read in (json_of, readable):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def text_or_json(text: str) -> Any:
    """A table where *text* is one, else *text*; raises ValueError for a table that is not JSON."""
    return json_of(text) if re.match(r"\s*[{\[]", text) else text


#: What YAML has for a flag of each kind, and what messages call it.
_PLAIN: Mapping[str, tuple[tuple[type, ...], str]] = {
    "integer": ((int,), "a whole number"), "number": ((int, float), "a number"), "switch": ((bool,), "true or false")}


def of_kind(kind: str, value: Any) -> Any:
    """A *value* of YAML for a flag of that *kind*, with numbers in quotes read; raises ValueError with the reason."""
    plain, word = _PLAIN.get(kind, ((object,), ""))
    if isinstance(value, str) and kind in ("integer", "number"):
        value = READERS[kind](value)
    fits = isinstance(value, plain) and (not isinstance(value, bool) or not word or kind == "switch")
    if not fits:
        raise ValueError(f"expected {word}, not {value!r}")
    return value


READERS: Mapping[str, Callable[[str], Any]] = {
    "integer": integer, "number": number, "readable": readable, "json": text_or_json, "text": str}


#: A variable that the text leaves open, as Compose writes it.
_OPEN = re.compile(r"\$(?:\{([A-Za-z_]\w*)[^}]*\}|([A-Za-z_]\w*))")
_NUMBER = re.compile(r"-\d+(\.\d*)?([eE][-+]?\d+)?$|-\.\d+$")


@frozen
class Given:
    """A flag with its value, as the line gives it."""

    flag: Flag
    value: Any
    said: str
    """The words: "--max-model-len 32k"."""
    where: str
    open: bool = False
    """Whether its value is a variable that the text does not set."""

    @property
    def dest(self) -> str:
        return self.flag.dest


@define
class Parser:
    """Reads the words behind a program's name by a table of flags."""

    table: FlagTable
    further: Sequence[str] = ()
    """Names that are known beside the table, for the nearest name of one that is not."""
    idle: Callable[[str], bool] = lambda _: False
    """Whether a flag changes nothing, so that its value may be left open."""
    positionals: list[Word] = field(factory=list, init=False)

    def read(self, words: Sequence[Word]) -> list[Given]:
        """The flags that *words* give, in order; the others become `positionals`.

        Raises ConfigError for an unknown flag, a missing value, one that cannot be, and for a variable without a value
        in place of any but an idle flag's.
        """
        given = [self._settled(one) for one in self._all([*words])]
        for word in self.positionals:
            refuse_open(word.known().text, word.where)
        return self._joined(given)

    def _settled(self, given: Given) -> Given:
        if given.open or not is_open(given.said):
            return given
        if not self.idle(given.dest):
            refuse_open(given.said, given.where)
        return evolve(given, open=True)

    def _all(self, words: list[Word]) -> Iterator[Given]:
        index = 0
        while index < len(words):
            word = words[index]
            index += 1
            if word.text == "--":
                self.positionals += words[index:]
                return
            if not _is_flag(word.text):
                self.positionals.append(word)
                continue
            given, taken = self._flag(word, words[index:])
            unknown = next((one for one in (word, *words[index:index + taken]) if one.unknown), None)
            if unknown is not None and not self.idle(given.dest):
                unknown.known()
            index += taken
            yield evolve(given, open=unknown is not None)

    def _flag(self, word: Word, after: Sequence[Word]) -> tuple[Given, int]:
        """The flag of *word*, and how many of the words *after* it are its value."""
        name, equals, value = word.text.partition("=")
        stem, dot, path = name.partition(".")
        flag, on = self.table.find(stem, word.where, self.further)
        own = [evolve(word, text=value)] if equals else None
        if dot:
            return self._dotted(flag, path, word, own, after)
        if flag.kind == "switch":
            if own is not None:
                raise ConfigError(word.where, f"{name} takes no value, and was given {value!r}")
            return Given(flag, on, word.text, word.where), 0
        values = own if own is not None else _values(flag, after)
        if not values and flag.nargs not in ("?", "*"):
            raise ConfigError(word.where, f"{name} needs a value")
        said = " ".join([word.text, *(value.text for value in values if own is None)])
        return Given(flag, _value(flag, values, name), said, word.where), 0 if own is not None else len(values)

    def _dotted(self, flag: Flag, path: str, word: Word, own: list[Word] | None,
                after: Sequence[Word]) -> tuple[Given, int]:
        """A key of a table by itself: `--compilation-config.cudagraph_mode FULL`; a `+` at its end begins a list."""
        values = own if own is not None else [*after[:1]]
        if not values or flag.kind != "json":
            problem = "needs a value" if flag.kind == "json" else "takes no keys"
            raise ConfigError(word.where, f"{word.text.partition('=')[0]} {problem}")
        text = values[0].text
        value: Any = [loose(part) for part in text.split(",")] if path.endswith("+") else loose(text)
        for key in reversed(path.removesuffix("+").split(".")):
            value = {key: value}
        said = word.text if own is not None else f"{word.text} {text}"
        return Given(flag, value, said, word.where), 0 if own is not None else 1

    def _joined(self, given: list[Given]) -> list[Given]:
        """*given* with the keys of one table together; of a flag that is given twice, the last counts."""
        joined: dict[str, Given] = {}
        for new in given:
            joined[new.dest] = _both(joined.pop(new.dest, None), new)
        return [*joined.values()]


def is_open(text: str) -> bool:
    """Whether a *text* has a variable without a value."""
    return _OPEN.search(text) is not None


def refuse_open(text: str, where: str) -> None:
    """Raise ConfigError for a *text* with a variable that has no value."""
    if (match := _OPEN.search(text)) is not None:
        raise ConfigError(where, f"{match[0]} is not set in the text; say what it is: --env"
                                 f" {match[1] or match[2]}=VALUE")


def _both(old: Given | None, new: Given) -> Given:
    """*new* with the keys of *old*, if it is one more key of its table."""
    dotted = "." in new.said.split()[0].partition("=")[0]
    if old is None or not dotted or not isinstance(old.value, dict):
        return new
    return evolve(new, value=_merged(old.value, new.value), said=f"{old.said} {new.said}", where=old.where)


def _merged(old: Any, new: Any) -> Any:
    """*new* over *old*: tables are merged, lists are joined."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return old + new if isinstance(old, list) and isinstance(new, list) else new


def _is_flag(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and not _NUMBER.match(text) and " " not in text.partition("=")[0]


def _values(flag: Flag, after: Sequence[Word]) -> list[Word]:
    """The words behind *flag* that are its value."""
    most = len(after) if flag.nargs in ("+", "*") else flag.nargs if isinstance(flag.nargs, int) else 1
    values: list[Word] = []
    for word in after[:most]:
        if _is_flag(word.text) or word.text == "--":
            break
        values.append(word)
    return values


def _value(flag: Flag, words: Sequence[Word], name: str) -> Any:
    values = [_read(flag, word, name) for word in words]
    if flag.nargs in ("+", "*") or isinstance(flag.nargs, int):
        return values
    return values[0] if values else True


def _read(flag: Flag, word: Word, name: str) -> Any:
    if word.unknown or is_open(word.text):
        return word.text
    try:
        value: Any = READERS[flag.kind](word.text)
    except ValueError as error:
        raise ConfigError(word.where, f"{name}: {error}") from None
    if flag.choices and value not in flag.choices and not flag.until:
        raise ConfigError(word.where, f"{name} must be one of {', '.join(map(str, flag.choices))}, not {word.text!r}")
    return value


def value_of(given: Sequence[Given], dest: str, default: Any = None) -> Any:
    """The value of a flag, or *default* where it is not given."""
    return next((one.value for one in given if one.dest == dest and not one.open), default)


def where_of(given: Sequence[Given], dest: str, default: str = "") -> str:
    """The place of a flag, or *default* where it is not given."""
    return next((one.where for one in given if one.dest == dest), default)


def word_of(given: Sequence[Given], dest: str) -> Word | None:
    """The value of a flag as a word with its place."""
    return next((Word(str(one.value), one.where) for one in given if one.dest == dest), None)


def table_of(given: Given) -> dict[str, Any]:
    """The table that a flag is given; raises ConfigError for another value."""
    if given.value in (None, "", "None"):
        return {}
    if not isinstance(given.value, Mapping):
        raise ConfigError(given.where, f"{given.flag.name}: expected a table in JSON, such as '{{\"key\": 1}}', not"
                                       f" {given.value!r}")
    return dict(given.value)


def known_keys(given: Given, table: Mapping[str, Any], cls: type, idle: Collection[str] = ()) -> dict[str, Any]:
    """The keys of *table* that *cls* has; raises ConfigError for those that are neither there nor *idle*."""
    known = [*fields_dict(cls), *idle]
    for key in table:
        if key not in known:
            raise ConfigError(given.where, f"{given.flag.name}: {key} is no key that ksim knows"
                                           f"{did_you_mean(key, known)}")
    return {key: value for key, value in table.items() if key in fields_dict(cls) and value is not None}
