"""The flags of a program, as its own parser lists them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from attrs import field, frozen

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
