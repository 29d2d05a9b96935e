"""What is probably wrong with a text that cannot be read, and what to write instead."""

import re

__all__ = ["broken_line", "not_utf8", "number_hint"]

#: Characters that chat programs and word processors put in place of those of a keyboard, and what to write.
_TYPOGRAPHIC = {**dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb`", '"'), **dict.fromkeys("\u2018\u2019", "'")}
#: Dashes that look like a minus, and spaces that look like one and are none.
_MINUS, _SPACES = "\u2212\u2013\u2014", "\u00a0\u2007\u202f\u200b"
_PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")
_LONGEST = 60
#: What a line that is no TOML looks like, and what to write.
_SYNTAX = (
    (r"[\w.-]+\s*:|- ", 'this reads like YAML; TOML has KEY = VALUE, such as gpu = "h200", and [TABLES]'),
    (r".*=\s*\d+,\d", "write a decimal point, such as 0.5, and no comma"),
    (r".*=\s*(True|False|None|null|yes|no|on|off)\b", "write true or false; leave out a key that has no value"),
    (r".*=\s*[A-Za-z/~.]", 'put a text in quotes, such as model = "llama-3.1-8b"'),
    (r".*=\s*[\d.]+\s*[A-Za-z%]", 'put a quantity with its unit in quotes, such as "200 ms"'),
    (r"\[[^]]*$|.*=\s*[\[{\"'][^\]}\"']*$", "close the bracket or quote"),
)


def broken_line(text: str, problem: str) -> str:
    """The line of *text* that a parser's *problem* is about, and what is probably wrong with it; "" if unknown.

    *problem* says "(at line 2, column 9)", as `tomllib` does.
    """
    found, lines = _PLACE.search(problem), text.rstrip().splitlines()
    number = int(found[1]) if found else len(lines) if "end of document" in problem else 0
    if not 0 < number <= len(lines):
        return ""
    line = lines[number - 1].strip()
    hint = _hint(text, line, problem)
    shown = line if len(line) <= _LONGEST else f"{line[:_LONGEST - 4]} ..."
    return f": {shown}" + (f"; {hint}" if hint else "")


def _hint(text: str, line: str, problem: str) -> str:
    if text.lstrip().startswith("{"):
        return "this is JSON: name the file .json"
    if odd := next((letter for letter in line if letter in _TYPOGRAPHIC), ""):
        return f"write {_TYPOGRAPHIC[odd]} in place of {odd}"
    if any(minus in line for minus in _MINUS):
        return "write a plain - as the minus"
    if any(space in line for space in _SPACES):
        return "there is a space that is no plain space, as web pages have: write it anew"
    if "twice" in problem or "overwrite" in problem:
        return "put the keys of both into one table, and each key once"
    return next((hint for pattern, hint in _SYNTAX if re.match(pattern, line)), "")


def not_utf8(content: bytes) -> str:
    """Why *content* is no text in UTF-8."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "is not text in UTF-8, but in UTF-16; save it as UTF-8"
    kinds = {b"PAR1": "a Parquet file", b"\x1f\x8b": "gzipped", b"PK\x03\x04": "a zip archive", b"\x89PNG": "a picture",
             b"%PDF": "a PDF", b"\x93NUMPY": "an array of NumPy's"}
    kind = next((kind for start, kind in kinds.items() if content.startswith(start)), "")
    return f"is not text in UTF-8{f', but {kind}' if kind else ''}"


def number_hint(text: object, kind: type = float) -> str:
    """What to write in place of *text*, which is meant to be a number; "" where nobody knows."""
    if not isinstance(text, str):
        return ""
    if any(minus in text for minus in _MINUS):
        return "; write a plain - as the minus"
    if kind is int:
        return _whole_hint(text.strip())
    has_comma = re.match(r"\s*[-+]?\d+,\d", text)
    return f"; write a decimal point: {text.replace(',', '.', 1).strip()!r}" if has_comma else ""


def _whole_hint(text: str) -> str:
    if re.fullmatch(r"\d+(,\d{3})+", text):
        return f"; write it without commas: {text.replace(',', '')}"
    if re.fullmatch(r"\d+(\.\d+)?\s*[kK]", text):
        return f"; write it out, such as {round(float(text[:-1]) * 1024)}"
    return "; several values are for `ksim sweep --over`" if re.fullmatch(r"\d+(\s*,\s*\d+)+", text) else ""
