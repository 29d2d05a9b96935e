"""Checked values of the fields of a trace."""

import json
import math
import re
from collections.abc import Hashable, Iterable
from datetime import UTC, datetime
from typing import Any

from ksim.foundation.text_hints import number_hint
from ksim.foundation.units import LONGEST
from ksim.workload.lines import Lines

#: Units of time by name, each as its number in a second.
UNITS = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0, "min": 1 / 60, "h": 1 / 3600}

#: Units as names of columns have them: behind a mark, or in capitals behind small letters.
_NAMED = {"ns": ("ns", "nanos?", "nanosecs?", "nanoseconds?"),
          "us": ("us", "µs", "micros?", "microsecs?", "microseconds?"),
          "ms": ("ms", "msecs?", "millis?", "millisecs?", "milliseconds?"), "s": ("s", "secs?", "seconds?"),
          "min": ("mins", "minutes?"), "h": ("hrs?", "hours?")}
_ENDINGS = tuple((unit, re.compile(rf"(?:^|[\W_]|(?<=[a-z])(?=[A-Z]))(?i:{'|'.join(words)})[\])}}]?\s*$"))
                 for unit, words in _NAMED.items())
_MOST = 10**9
_COMMA = re.compile(r"[-+]?([0-9]+),([0-9]+)")
#: Tables of results hold whole numbers of 64 bits.
_INT64 = 2**63
_WHOLE = re.compile(r"[-+]?[0-9]{1,19}", re.ASCII)


def shown(value: Any) -> str:
    """Return *value* for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def listed(names: Iterable[Any]) -> str:
    """Return *names* for a message, separated by commas and shortened if they are long."""
    text = "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in ", ".join(map(str, names)))
    return text if len(text) <= 300 else f"{text[:297]}..."


def count(value: Any, name: str, lines: Lines) -> int:
    """Return *value*, a number or its text, as a count of tokens; raise DataError if it is not one."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        tokens = int(value)  # the fast path for the common case
    else:
        number = _number(value)
        if not number.is_integer() or not 0 <= number <= _MOST:
            raise lines.error(f"{name} is {shown(value)}; expected a whole number of tokens, at most {_MOST:,}"
                              f"{number_hint(value, int)}")
        tokens = int(number)
    if tokens < lines.least_tokens:
        raise lines.error(f'{name} is 0; a request has at least one token; to leave out such rows, set empty = "skip" '
                          f"(--skip-empty)")
    return tokens


def integer(value: Any, name: str, lines: Lines) -> int:
    """Return *value* as a whole number of 64 bits, 0 for an empty text; raise DataError if it is not one."""
    number = 0.0 if value == "" else _number(value)
    if not number.is_integer() or not -_INT64 <= number < _INT64:
        raise lines.error(f"{name} is {shown(value)}; expected a whole number of 64 bits")
    exact = isinstance(value, int) or (isinstance(value, str) and _WHOLE.fullmatch(value.strip()))
    return int(value) if exact else int(number)  # a float has 53 bits


def unit_of(name: str) -> str:
    """Return the unit of time with which the *name* of a column ends, such as ms of req_start_ms or "Start (ms)".

    A name that is a letter alone has none.  It is empty where there is none.
    """
    if len(name.strip()) < 2:
        return ""
    return next((unit for unit, ending in _ENDINGS if ending.search(name)), "")


def unit_in_use(name: str, lines: Lines) -> float:
    """Return how many units of the column *name* a second has; raise DataError where the user says another."""
    unit = unit_of(name)
    if unit and lines.per_second and lines.per_second != UNITS[unit]:
        said = next(known for known, per_second in UNITS.items() if per_second == lines.per_second)
        raise lines.error(f"column {name!r} is in {unit} by its name, and time_unit (--time-unit) says {said}; leave"
                          f" out time_unit, or rename the column")
    return UNITS[unit or "s"]


def moment(value: Any, name: str, lines: Lines, per_second: float = 1) -> float:
    """Return *value*, a point in time in units of 1/*per_second* s, in seconds.

    A unit of time that the user chose replaces *per_second*.  Raises DataError for
    a value that is not a number, and for a negative one.
    """
    number = _number(value)
    if math.isnan(number) and lines.decimal_comma and isinstance(value, str):
        number = _with_comma(value, name, lines)
    if not 0 <= number < math.inf:
        expected = "no negative time; add an offset to all times" if number < 0 else "a number"
        raise lines.error(f"{name} is {shown(value)}; expected {expected}")
    return number / (lines.per_second or per_second)


def duration(value: Any, name: str, lines: Lines, per_second: float = 1) -> float:
    """Return *value*, a duration in units of 1/*per_second* s, in seconds; None or an empty text is 0."""
    if value is None or value == "":
        return 0.0
    if _number(value) < 0:
        raise lines.error(f"{name} is {shown(value)}; expected no negative time")
    seconds = moment(value, name, lines, per_second)
    if seconds > LONGEST:
        raise lines.error(f"{name} is {shown(value)}; expected a time of at most {LONGEST:g} s, which is 31 years")
    return seconds


def share(value: Any, name: str, lines: Lines) -> float:
    """Return *value* as a number from 0 to 1; raise DataError if it is not one."""
    number = _number(value)
    if not 0.0 <= number <= 1.0:
        raise lines.error(f"{name} is {shown(value)}; expected a number from 0 to 1")
    return number


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

    There may be no names at all; if *loose*, there may be names for the full chunks
    only.  Raises DataError if *ids* is not a list of whole numbers or texts, or has
    not one for each chunk of *prompt* tokens.
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
    """Return *value* as a float, NaN if it is not a number."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _with_comma(value: str, name: str, lines: Lines) -> float:
    """Return a number with a decimal comma; raise DataError where that may part thousands."""
    match = _COMMA.fullmatch(value.strip())
    if match is None:
        return math.nan
    whole, fraction = match[1], match[2]
    if len(fraction) == 3 and len(whole) <= 3 and whole != "0":
        raise lines.error(f"{name} is {value!r}, which may be {whole}.{fraction} or {whole}{fraction}; write a decimal"
                          f" point, and no mark between thousands")
    return float(value.replace(",", "."))


def is_date(value: Any) -> bool:
    """Return whether *value* is a date and time in ISO 8601."""
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


class Dates:
    """Converts ISO 8601 dates, with or without fraction and zone, to seconds since the first of them.

    A date without a zone is UTC.  Fractions below 1 us are dropped.
    """

    def __init__(self, lines: Lines):
        self.lines = lines
        self.first: datetime | None = None
        lines.dates = True

    def seconds(self, value: Any, name: str) -> float:
        """Return the seconds from the first date to *value*, negative if it is earlier; raise DataError for no date."""
        try:
            date = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            raise self.lines.error(f"{name} is {shown(value)}; expected a time such as 2023-11-16 18:15:46.6805900"
                                   ) from None
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        self.first = self.first or date
        return (date - self.first).total_seconds()
