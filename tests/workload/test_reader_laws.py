"""What holds for every trace reader, from the moment its file exists."""

import gzip
import itertools
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ksim.foundation.catalog import names
from ksim.foundation.errors import DataError
from ksim.workload.reading import FOLDER, read, reader, recognise
from ksim.workload.replay import Replay
from ksim.workload.rows import Ledger

FORMATS = names(FOLDER)


@pytest.fixture
def example(trace):
    """Write the example of a format, or *content* in its place, with what has to be beside it."""

    def write(name, content=None):
        for file, text in getattr(reader(name), "beside", {}).items():
            trace(text, file)
        return trace(reader(name).example if content is None else content)

    return write


def requests_of(path, name=""):
    """All requests, with a rate for formats without arrival times."""
    return list(Replay(path, format=name, rate=2).requests(0))


@pytest.mark.parametrize("name", FORMATS)
class TestEveryReader:
    def test_the_example_of_a_reader_fits_no_other_reader(self, example, name):
        assert recognise(example(name)) == name

    def test_arrivals_ordered_from_zero_and_lengths_positive(self, example, name):
        rows = list(read(example(name), arrivals=itertools.count(0.0)))
        assert len(rows) > 1 and rows[0].arrival == 0
        assert all(earlier.arrival <= later.arrival for earlier, later in pairwise(rows))
        assert all(row.prompt > 0 and row.output > 0 for row in rows)

    def test_reading_twice_gives_the_same(self, example, name):
        path = example(name)
        assert requests_of(path) == requests_of(path)

    def test_a_cut_file_is_an_error_or_shorter_but_never_crashes(self, example, name):
        whole = reader(name).example
        for end in range(1, len(whole), 1 + len(whole) // 50):
            try:
                requests_of(example(name, whole[:end]), name)
            except Exception as error:
                assert type(error).__name__ == "DataError", f"{whole[:end]!r} gave {error!r}"

    @pytest.mark.parametrize("form", ["crlf", "mark", "blank lines", "no last line end", "gzip", "quoted fields"])
    def test_the_same_trace_in_another_form_reads_the_same(self, example, name, form):
        content = FORMS[form](reader(name).example.replace("\r", ""))
        assert requests_of(example(name, content)) == requests_of(example(name))

    @pytest.mark.parametrize("damage", ["cut gzip", "half a line", "zero byte", "not utf-8", "10 MB of one letter",
                                        "10 MB of text", "a long list", "deep nesting", "another file"])
    def test_a_damaged_file_is_an_error_with_its_place(self, example, name, damage):
        path = example(name, DAMAGES[damage](reader(name).example.rstrip("\n").encode()))
        with pytest.raises(DataError) as caught:
            requests_of(path, name)
        assert str(caught.value).startswith(str(path)) and len(str(caught.value)) < len(str(path)) + 800


def quoted(text):
    """Put every field of a CSV file into quotes."""
    if text[0] in "[{":
        return text
    return "\n".join(",".join(f'"{field}"' for field in line.split(",")) for line in text.splitlines())


FORMS = {
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "mark": lambda text: "\ufeff" + text,
    "blank lines": lambda text: "\n \n" + text.replace("\n", "\n\n"),
    "no last line end": lambda text: text.rstrip(),
    "gzip": lambda text: gzip.compress(text.encode(), mtime=0),
    "quoted fields": quoted,
}
DAMAGES = {
    "cut gzip": lambda text: gzip.compress(text, mtime=0)[:-12],
    "half a line": lambda text: text[:text.rindex(b"\n") + (len(text) - text.rindex(b"\n")) // 2],
    "zero byte": lambda text: text[:-9] + b"\0" + text[-9:],
    "not utf-8": lambda text: text[:-9] + b"\xff" + text[-9:],
    "10 MB of one letter": lambda text: text + b"\n" + b"x" * 10**7,
    "10 MB of text": lambda text: text + b'\n{"timestamp": "' + b"x" * 10**7 + b'", "id": 1}',
    "a long list": lambda text: text + b'\n{"timestamp": [' + b"1," * 10**5 + b'1], "id": 1}',
    "deep nesting": lambda text: text + b'\n{"timestamp": ' + b"[" * 10**5 + b"]" * 10**5 + b"}",
    "another file": lambda text: b"<html>\n<body>\n</body>\n</html>\n",
}


PIECES = ['"', "{", "}", "[", "]", ",", ":", "-", "1e308", "1e-308", "NaN", "null", "9" * 20, "\n", "\\", "é", "[[",
          "{}", "2024-05-12", "9999-12-31T23:59:59-23:59", "inf", "\t", ""]


@given(name=some.sampled_from(FORMATS), place=some.floats(0, 1), gone=some.integers(0, 5),
       put=some.sampled_from(PIECES), known=some.booleans())
def test_a_changed_file_reads_or_is_an_error_of_one_line(tmp_path_factory, name, place, gone, put, known):
    folder, text = tmp_path_factory.mktemp("law"), reader(name).example
    for file, content in getattr(reader(name), "beside", {}).items():
        (folder / file).write_text(content)
    begin = int(place * len(text))
    (folder / "trace").write_text(text[:begin] + put + text[begin + gone:], encoding="utf-8")
    try:
        requests_of(folder / "trace", name if known else "")
    except DataError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000


#: Failed requests have no output; only they may be without a prompt.
ROWS = some.lists(some.tuples(some.integers(0, 30), some.integers(0, 9), some.integers(0, 9)).filter(
    lambda row: row[1] or not row[2]), min_size=1, max_size=40)


@given(rows=ROWS, sort=some.booleans(), limit=some.none() | some.integers(1, 9), start=some.integers(0, 9))
def test_every_row_is_accounted_for(tmp_path_factory, rows, sort, limit, start):
    path = tmp_path_factory.mktemp("law") / "trace.csv"
    path.write_text("arrival,prompt,output\n0,9,3\n" + "".join(f"{t},{p},{o}\n" for t, p, o in rows) + "40,9,3\n")
    ledger = Ledger()
    replay = Replay(path, empty="skip", sort=sort, limit=limit, start=start, max_prompt=9, max_tokens=12)
    requests = list(replay.requests(0, ledger))
    assert [request.id for request in requests] == list(range(len(requests)))
    assert requests[0].arrival == 0
    assert all(earlier.arrival <= later.arrival for earlier, later in pairwise(requests))
    assert ledger.requests == len(requests)
    assert ledger.rows == len(requests) + ledger.zero_outputs + ledger.outside_window + ledger.overlong
    assert limit or ledger.rows == len(rows) + 2


def test_memory_does_not_grow_with_the_trace(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("arrival,prompt,output\n" + "".join(f"{row / 8},1000,{row % 300 + 1}\n" for row in range(20_000)))
    tracemalloc.start()
    count = sum(1 for _ in Replay(path, rate=3).requests(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 1_000_000, "20,000 rows held would take four times as much"
