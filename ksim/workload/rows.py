"""The rows of a trace, their columns in CSV, checked values of their fields, and counts of what happens to them."""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from operator import itemgetter
from typing import Any, NamedTuple

import attrs

from ksim.flow.request import Image, Request
from ksim.foundation.files import number_hint
from ksim.foundation.units import LONGEST
from ksim.workload.lines import Lines

#: How a folder of sessions without arrival times is replayed.
TOGETHER = "the sessions of the folder have no arrival times; all start at 0 s (--request-rate, or rate, spreads them)"


class Row(NamedTuple):
    """One request of a trace, as its reader yields it; the fields are those of `ksim.flow.request.Request`.

    `arrival` is in seconds from any origin, and NaN in every row if the format has
    no arrival times.  Lengths may be zero: such rows are dropped and counted later,
    and later the rows are put in order.
    """

    arrival: float
    prompt: int
    output: int
    chunks: tuple[Hashable, ...] = ()
    chunk_tokens: int = 16
    priority: int = 0
    session: str = ""
    delay: float = 0.0
    tenant: str = ""
    adapter: str = ""
    images: tuple[Image, ...] = ()
    acceptance: float | None = None
    max_tokens: int | None = None
    n: int = 1
    prompt_logprobs: int | None = None
    beam_width: int = 0
    outputs: tuple[int, ...] = ()
    aborted: float | None = None
    ignore_eos: bool | None = None
    model: str = ""


def follows(turn: Row | Request, previous: Row | Request | None) -> bool:
    """Return whether *turn* has no arrival of its own, but waits for *previous*, a turn of its session."""
    return (previous is not None and turn.session != "" and turn.session == previous.session
            and turn.arrival == previous.arrival)


@attrs.define
class Ledger:
    """Counts of a trace's rows, filled while it is read; a row that is dropped is counted under one reason.

    `notes` are remarks on the whole trace.  `zero_outputs` are failed requests,
    `reordered` rows were after a later one, `ties` arrive together with the request
    before them, and `duplicates` are equal to another request of the same arrival.
    Ties and duplicates are kept.
    """

    rows: int = 0
    zero_outputs: int = 0
    zero_prompts: int = 0
    outside_window: int = 0
    overlong: int = 0
    clipped: int = 0
    reordered: int = 0
    ties: int = 0
    duplicates: int = 0
    requests: int = 0
    notes: list[str] = attrs.field(factory=list)

    def add(self, other: "Ledger", name: str) -> None:
        """Add the counts of *other*, and its notes behind the *name* of its workload."""
        for key, number in other.counts().items():
            setattr(self, key, getattr(self, key) + number)
        self.notes += [f"{name}: {note}" for note in other.notes]

    def counts(self) -> dict[str, int]:
        """Return the counts by name."""
        return attrs.asdict(self, filter=lambda attribute, _: attribute.name != "notes")

    def remarks(self) -> list[str]:
        """Return a remark on each change to the trace; none if it is replayed as it is."""
        counts = self.counts()
        return self.notes + [f"{words}: {counts[name]:,}" for name, words in _REMARKS.items() if counts[name]]


_REMARKS = {
    "zero_outputs": "rows without output tokens (failed requests), dropped",
    "zero_prompts": "rows without prompt tokens, dropped",
    "outside_window": "rows outside the window of time, left out",
    "overlong": "requests over the length limit, dropped",
    "clipped": "requests over the length limit, cut to it",
    "reordered": "rows out of the order of arrival, put in order",
    "ties": "requests with the time stamp of the one before",
    "duplicates": "requests equal to another of the same time stamp",
}


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
        number = number_of(value)
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
    number = 0.0 if value == "" else number_of(value)
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
        chosen = next(unit_name for unit_name, per_second in UNITS.items() if per_second == lines.per_second)
        raise lines.error(f"column {name!r} is in {unit} by its name, and time_unit (--time-unit) says {chosen}; leave"
                          f" out time_unit, or rename the column")
    return UNITS[unit or "s"]


def moment(value: Any, name: str, lines: Lines, per_second: float = 1) -> float:
    """Return *value*, a point in time in units of 1/*per_second* s, in seconds.

    A unit of time that the user chose replaces *per_second*.  Raises DataError for
    a value that is not a number, and for a negative one.
    """
    number = number_of(value)
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
    if number_of(value) < 0:
        raise lines.error(f"{name} is {shown(value)}; expected no negative time")
    seconds = moment(value, name, lines, per_second)
    if seconds > LONGEST:
        raise lines.error(f"{name} is {shown(value)}; expected a time of at most {LONGEST:g} s, which is 31 years")
    return seconds


def share(value: Any, name: str, lines: Lines) -> float:
    """Return *value* as a number from 0 to 1; raise DataError if it is not one."""
    number = number_of(value)
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


def number_of(value: Any) -> float:
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


#: The most sequences of a request: VLLM_MAX_N_SEQUENCES in vLLM.
MOST_SEQUENCES = 16384


def sequences(value: Any, name: str, lines: Lines) -> int:
    """Return *value* as the number of sequences of a request; raise DataError for none, or more than vLLM takes."""
    number = integer(value, name, lines)
    if not 1 <= number <= MOST_SEQUENCES:
        raise lines.error(f"{name} is {shown(value)}; a request has 1 to {MOST_SEQUENCES:,} sequences")
    return number


def beams(value: Any, name: str, lines: Lines) -> int:
    """Return *value* as the width of a beam search, 0 for none; raise DataError for a width that vLLM does not take."""
    width = integer(value, name, lines)
    if not 0 <= width <= MOST_SEQUENCES:
        raise lines.error(f"{name} is {shown(value)}; a beam search has 1 to {MOST_SEQUENCES:,} beams, and 0 is none")
    return width


def logprobs(value: Any, name: str, lines: Lines) -> int:
    """Return *value* as a number of log-probabilities at each place of a prompt; raise DataError for one below -1."""
    number = integer(value, name, lines)
    if number < -1:
        raise lines.error(f"{name} is {shown(value)}; it must be non-negative, or -1 for the whole vocabulary")
    return number


def most_tokens(value: Any, name: str, output: int, lines: Lines) -> int:
    """Return *value* as the most tokens of an *output*; raise DataError if that has more."""
    most = count(value, name, lines)
    if most < output:
        raise lines.error(f"{name} is {shown(value)}, and the output has {output:,} tokens; an engine ends it there")
    return most


def flag(value: Any, name: str, lines: Lines) -> bool:
    """Return *value* as true or false, also of the texts true, false, 1 and 0; raise DataError for another."""
    known = {"true": True, "1": True, "false": False, "0": False}
    said = str(value).strip().lower()
    if said not in known:
        raise lines.error(f"{name} is {shown(value)}; expected true or false")
    return known[said]


def output_lengths(value: Any, name: str, expected: tuple[Any, int], lines: Lines) -> tuple[int, ...]:
    """Return *value*, such as 20|31, as the output tokens of each sequence of a request.

    What is *expected* is how many sequences there are, and the tokens of the longest; raises DataError for others.
    """
    parts, (number, longest) = value.split("|") if isinstance(value, str) else value, expected
    if not isinstance(parts, list):
        raise lines.error(f"{name} is {shown(value)}; expected the output tokens of each sequence, such as 20|31")
    lengths = tuple(count(part, name, lines) for part in parts)
    if str(len(lengths)) != str(number) or max(lengths) != longest:
        raise lines.error(f"{name} is {shown(value)}; expected a number for each of n sequences, and that of output for"
                          f" the longest")
    return lengths


#: Pixels of a side; no camera makes larger images.
LARGEST_SIDE = 2**16
_IMAGE = re.compile(r"(\d{1,5})x(\d{1,5})(?:@(\d{1,9}))?(?:#(.+))?")


def image_size(text: str) -> tuple[int, int]:
    """The width and height that *text* says, such as "1280x720"; raises ValueError for other text."""
    found = _IMAGE.fullmatch(text)
    if found is None or found[3] or found[4] or not all(0 < int(side) <= LARGEST_SIDE for side in found.group(1, 2)):
        raise ValueError(f"{shown(text)} is no size of an image; expected WIDTHxHEIGHT in pixels, such as 1280x720")
    return int(found[1]), int(found[2])


def images_of(value: Any, name: str, prompt: int, lines: Lines) -> tuple[Image, ...]:
    """The images in a field of a trace: ``1280x720|640x480``, or a list of such texts.

    Each is a width and a height, and maybe ``@`` and how many tokens of the prompt come before it (default: all), and
    ``#`` and a name that equal images share.  Raises DataError for anything else.
    """
    parts = [part.strip() for part in value.split("|") if part.strip()] if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise lines.error(f"{name} is {shown(value)}; expected images such as 1280x720|640x480")
    images = []
    for part in parts:
        found = _IMAGE.fullmatch(part)
        if found is None or not all(0 < int(side) <= LARGEST_SIDE for side in found.group(1, 2)):
            raise lines.error(f"{name} has {shown(part)}; expected WIDTHxHEIGHT in pixels, such as 1280x720, with"
                              f" @TOKENS and #NAME if you like")
        width, height, at, called = found.groups()
        images.append(Image(int(width), int(height), min(int(at), prompt) if at else prompt, called or ""))
    return tuple(sorted(images, key=lambda image: image.at))


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


#: The fields of a request that a column can hold; prompt and output are required.
FIELDS = ("arrival", "prompt", "output", "priority", "session", "delay", "tenant", "adapter", "hash_ids", "images",
          "acceptance", "max_tokens", "n", "prompt_logprobs", "beam_width", "outputs",
          "output_hash_ids", "aborted", "ignore_eos", "model")


def check_fields(columns: Mapping[str, str]) -> None:
    """Raise ValueError for a key of *columns* that is not in `FIELDS`, and for a value that is not a name."""
    for name, source in columns.items():
        if name not in FIELDS:
            close = get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"there is no field {shown(name)}; {hint}expected {', '.join(FIELDS)}")
        if not isinstance(source, str) or not source:
            raise ValueError(f"{name} is {shown(source)}; expected the name of a column")


def known_fields(_: Any, attribute: "attrs.Attribute[Any]", columns: Mapping[str, str]) -> None:
    """Check a field of an attrs class as `check_fields` does."""
    try:
        check_fields(columns)
    except ValueError as error:
        raise ValueError(f"{attribute.name}: {error}") from None


def delimiter(line: str) -> str:
    """Return what separates the columns of a file with the header *line*: of comma, semicolon and tab the commonest."""
    return max(",;\t", key=lambda mark: len(_split(line, mark)))


def header(line: str) -> list[str]:
    """Return the names in *line*, taken as the header of a CSV file; none if it is not CSV."""
    return _split(line, delimiter(line))


def _split(line: str, mark: str) -> list[str]:
    try:
        return [name.strip() for name in next(csv.reader([line], strict=True, delimiter=mark))]
    except csv.Error:
        return []


def columns(lines: Lines, needed: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the *needed* and the *optional* columns of each row; a column that is absent is empty.

    Raises DataError for a missing column, for a column that occurs twice, and for a
    row that does not match the header.
    """
    return named_columns(lines, (*needed, *optional), needed)


def named_columns(lines: Lines, names: Sequence[str], needed: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the columns *names* of each row as `columns` does; the *needed* ones are among them."""
    first = lines.first()
    present, mark = header(first), delimiter(first)
    lines.decimal_comma = mark != ","
    _check_header(present, names, needed, lines)
    pick = itemgetter(*(present.index(name) if name in present else len(present) for name in names))
    for row in _rows(lines, len(present), mark):
        row.append("")
        yield pick(row)


def _check_header(present: Sequence[str], names: Sequence[str], needed: Sequence[str], lines: Lines) -> None:
    if missing := [name for name in needed if name not in present]:
        commas = ("columns are separated by commas, semicolons or tabs" if len(present) < 2 else
              "is it of another format?")
        raise lines.error(f"has no column {missing[0]!r}, only {listed(present) or 'an unreadable header'}; {commas} "
                          f"(--columns says what each column is)")
    times = Counter(present)
    if twice := [name for name in names if times[name] > 1]:
        raise lines.error(f"has the column {twice[0]!r} {times[twice[0]]} times; rename all but one")


def _rows(lines: Lines, width: int, mark: str) -> Iterator[list[str]]:
    rows = csv.reader(lines, strict=True, delimiter=mark)
    next(rows)
    try:
        for row in rows:
            if len(row) != width:
                raise lines.error(f"has {len(row)} fields, but the header has {width}; is the file cut short?")
            yield row
    except csv.Error as error:
        raise lines.error(f"is not valid CSV: {error}") from None
