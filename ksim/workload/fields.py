"""Checked numbers out of the fields of a trace."""

import math
import re
from collections.abc import Hashable, Iterable
from typing import Any

from ksim.foundation.units import LONGEST
from ksim.workload.lines import Lines

_MOST, _INTEGERS = 10**9, 2**63
_WHOLE = re.compile(r"[-+]?[0-9]{1,19}", re.ASCII)


def count(value: Any, name: str, lines: Lines) -> int:
    """Return *value*, a number or its text, as a count of tokens; raise DataError where it is none."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)  # the common case, quickly
    number = _number(value)
    if not number.is_integer() or not 0 <= number <= _MOST:
        raise lines.error(f"{name} is {value!r}; expected a whole number of tokens")
    return int(number)


def integer(value: Any, name: str, lines: Lines) -> int:
    """Return *value* as a whole number, 0 for an empty text; raise DataError where it is none."""
    number = 0.0 if value == "" else _number(value)
    if not number.is_integer() or abs(number) >= _INTEGERS:
        raise lines.error(f"{name} is {value!r}; expected a whole number" + " of 64 bits" * number.is_integer())
    exact = isinstance(value, int) or (isinstance(value, str) and _WHOLE.fullmatch(value.strip()))
    return int(value) if exact else int(number)  # a float has 53 bits


def moment(value: Any, name: str, lines: Lines, per_second: int = 1) -> float:
    """Return *value*, a point in time in units of 1/*per_second* s, in seconds; raise DataError where it is none."""
    number = _number(value)
    if not 0 <= number < math.inf:
        what = "no negative time; add the same to all of them" if number < 0 else "a number"
        raise lines.error(f"{name} is {value!r}; expected {what}")
    return number / per_second


def duration(value: Any, name: str, lines: Lines, per_second: int = 1) -> float:
    """Return *value*, a duration in units of 1/*per_second* s, in seconds; None or an empty text is 0."""
    if value is None or value == "":
        return 0.0
    seconds = _number(value) / per_second
    if not 0 <= seconds <= LONGEST:
        what = "no negative time" if seconds < 0 else f"a time of at most {LONGEST:g} s, which is 31 years"
        raise lines.error(f"{name} is {value!r}; expected {what}")
    return seconds


def chunk_names(ids: Any, prompt: int, chunk_tokens: int, lines: Lines) -> tuple[Hashable, ...]:
    """Return the names of a prompt's chunks, the last of which may be a partial one.

    No names at all are fine.  Raises DataError where they are not a list of
    whole numbers or texts, or not as many as *prompt* tokens have chunks.
    """
    if not ids:
        return ()
    if not isinstance(ids, list) or not _plain(ids):
        raise lines.error("the block ids are not a list of whole numbers")
    expected = -(-prompt // chunk_tokens)
    if len(ids) != expected:
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
