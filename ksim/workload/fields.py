"""Checked values out of the fields of a trace."""

import json
import math
import re
from collections.abc import Hashable, Iterable
from typing import Any

from ksim.foundation.units import LONGEST
from ksim.workload.lines import Lines

#: Units of time by name, each as how many of it make a second.
UNITS = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0, "min": 1 / 60, "h": 1 / 3600}

_MOST = 10**9
#: Outside this range no table of results can hold a number.
_INT64 = 2**63
_WHOLE = re.compile(r"[-+]?[0-9]{1,19}", re.ASCII)


def shown(value: Any) -> str:
    """Return *value* for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def listed(names: Iterable[Any]) -> str:
    """Return *names* for a message, separated by commas and cut where they are many or long."""
    text = "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in ", ".join(map(str, names)))
    return text if len(text) <= 300 else f"{text[:297]}..."


def count(value: Any, name: str, lines: Lines) -> int:
    """Return *value*, a number or its text, as a count of tokens; raise DataError where it is not one."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        tokens = int(value)  # the common case, quickly
    else:
        number = _number(value)
        if not number.is_integer() or not 0 <= number <= _MOST:
            raise lines.error(f"{name} is {shown(value)}; expected a whole number of tokens, at most {_MOST:,}")
        tokens = int(number)
    if tokens < lines.least_tokens:
        raise lines.error(f'{name} is 0; a request has at least one token; to leave out such rows, set empty = "skip" '
                          f"(--skip-empty)")
    return tokens


def integer(value: Any, name: str, lines: Lines) -> int:
    """Return *value* as a whole number of 64 bits, 0 for an empty text; raise DataError where it is not one."""
    number = 0.0 if value == "" else _number(value)
    if not number.is_integer() or not -_INT64 <= number < _INT64:
        raise lines.error(f"{name} is {shown(value)}; expected a whole number of 64 bits")
    exact = isinstance(value, int) or (isinstance(value, str) and _WHOLE.fullmatch(value.strip()))
    return int(value) if exact else int(number)  # a float has 53 bits


def moment(value: Any, name: str, lines: Lines, per_second: float = 1) -> float:
    """Return *value*, a point in time in units of 1/*per_second* s, in seconds.

    A unit of time that the user chose goes before *per_second*.  Raises
    DataError for what is not a number, and for a negative one.
    """
    number = _number(value)
    if not 0 <= number < math.inf:
        expected = "no negative time; add the same to all of them" if number < 0 else "a number"
        raise lines.error(f"{name} is {shown(value)}; expected {expected}")
    return number / (lines.per_second or per_second)


def duration(value: Any, name: str, lines: Lines, per_second: float = 1) -> float:
    """Return *value*, a duration in units of 1/*per_second* s, in seconds; None or an empty text is 0."""
    if value is None or value == "":
        return 0.0
    seconds = moment(value, name, lines, per_second)
    if seconds > LONGEST:
        raise lines.error(f"{name} is {shown(value)}; expected a time of at most {LONGEST:g} s, which is 31 years")
    return seconds


def label(value: Any, name: str, lines: Lines) -> str:
    """Return *value*, a text or a whole number, as a text; None is the empty text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise lines.error(f"{name} is {shown(value)}; expected a text or a whole number")


def id_list(text: str, name: str, lines: Lines) -> list[Hashable]:
    """Return the block ids in a field of CSV, such as ``11|22``, ``11 22`` or ``[11, 22]``."""
    if text.startswith("["):
        try:
            ids = json.loads(text)
        except (ValueError, RecursionError):
            raise lines.error(f"{name} is {shown(text)}; expected block ids such as 11|22 or [11, 22]") from None
        return list(ids)
    return list(text.replace("|", " ").split())


def chunk_names(ids: Any, prompt: int, chunk_tokens: int, lines: Lines, loose: bool = False) -> tuple[Hashable, ...]:
    """Return the names of a prompt's chunks, the last of which may be a partial one.

    No names at all are fine, and if *loose*, so are names for the full chunks
    only.  Raises DataError where *ids* are not a list of whole numbers or texts,
    or not as many as *prompt* tokens have chunks.
    """
    if ids is None or ids == []:
        return ()
    if not isinstance(ids, list) or not _plain(ids):
        raise lines.error("the block ids are not a list of whole numbers")
    expected = -(-prompt // chunk_tokens)
    if len(ids) != expected and not (loose and len(ids) == prompt // chunk_tokens):
        raise lines.error(f"has {len(ids):,} block ids, but {prompt:,} prompt tokens fill {expected:,} blocks of "
                          f"{chunk_tokens}; set chunk_tokens to the block size of this trace")
    return tuple(ids)


def _plain(ids: Iterable[Any]) -> bool:
    return all(type(name) is int or type(name) is str for name in ids)


def _number(value: Any) -> float:
    """Return *value* as a float, NaN where it is no number."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
