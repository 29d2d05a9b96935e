"""Values of flags: whole numbers as people write them, and JSON with such numbers in it."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

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
