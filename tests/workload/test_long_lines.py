"""Lines and files that are too long to be traces, and long ones that are read in little memory."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation import catalog, files
from ksim.foundation.errors import DataError
from ksim.validation.cases import load_json
from ksim.workload import lines
from ksim.workload.jsonl import documents
from ksim.workload.lines import Lines
from tests.properties import examples


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Limits that short files reach."""
    monkeypatch.setattr(lines, "_PIECE", 16)
    monkeypatch.setattr(lines, "LONGEST_LINE", 100)
    monkeypatch.setattr(lines, "_MOST_BLANK", 5)
    monkeypatch.setattr(files, "_ANY_RATIO", 10_000)
    monkeypatch.setattr(files, "LONGEST", 100)


def written(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
@pytest.mark.parametrize(("content", "problem"), [
    (b"good\n" + b"a" * 200 + b"\n", ":2: has a line of more than"), (b"[" + b"{" * 200, ":1: has an object of more"),
    (b'[{"a": "' + b"b" * 200, ":1: has an object of more"), (b"x\n" + b"\n" * 7 + b"y\n", "empty lines before it"),
])
def test_a_line_has_a_limit_which_the_error_names(tmp_path, name, content, problem):
    with pytest.raises(DataError, match=problem):
        list(Lines(written(tmp_path / name, content)))


def test_a_few_bytes_do_not_unpack_to_any_number(tmp_path):
    path = written(tmp_path / "t.csv.gz", b"1,2,3\n" * 100_000)
    with pytest.raises(DataError, match="unpacks to more than 200 times its size.*gunzip t.csv.gz"):
        list(Lines(path))
    with pytest.raises(DataError, match="unpacks to more than"):
        load_json(path)


def test_a_file_that_is_read_whole_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "LONGEST", 100)
    with pytest.raises(DataError, match="MiB long; a file of its kind is read up to"):
        catalog.read(written(tmp_path / "s.toml", b"a = 1\n" * 50))


@examples(40)
@given(rows=st.lists(st.dictionaries(st.sampled_from("ab"), st.text('{}[]"\\,: ab\u00e9\n', max_size=12), max_size=2),
                     max_size=8), spaces=st.booleans(), end=st.sampled_from(["", "\n", "\n\n"]))
def test_a_list_on_one_line_is_read_object_by_object(tmp_path_factory, rows, spaces, end):
    text = json.dumps(rows, ensure_ascii=False, separators=(", ", ": ") if spaces else (",", ":")) + end
    path = written(tmp_path_factory.getbasetemp() / "list.json", text.encode())
    assert list(documents(Lines(path))) == rows
    assert max(map(len, Lines(path))) <= 100
