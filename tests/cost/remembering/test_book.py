"""A file of rows says what was written, or nothing, whatever happens to it."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.cost.remembering import book
from ksim.cost.remembering.book import ENDING, FILES, Book, clear, files, rows_of
from tests.properties import examples

ROWS = {bytes([number]) * 16: os.urandom(60) for number in range(200)}


def made(path: Path, rows: dict[bytes, bytes] = ROWS) -> Book:
    """A file of *rows*, closed."""
    found = Book(path)
    found.write(rows)
    found.close()
    return found


def test_what_one_wrote_another_reads(tmp_path):
    made(tmp_path / f"a{ENDING}")
    other = Book(tmp_path / f"a{ENDING}")
    assert other.rows([*ROWS, b"unknown"]) == ROWS
    assert rows_of(other.path) == len(ROWS)
    assert not other.problem


def test_many_are_asked_for_in_several_questions(tmp_path):
    rows = {number.to_bytes(16, "big"): b"row" for number in range(2 * book.TOGETHER + 1)}
    assert made(tmp_path / f"a{ENDING}", rows).rows([*rows]) == rows


def test_a_row_takes_the_place_of_the_one_under_its_key(tmp_path):
    found = made(tmp_path / f"a{ENDING}", {b"key": b"broken"})
    found.write({b"key": b"whole"})
    assert found.rows([b"key"]) == {b"key": b"whole"}


damage = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=40)


@given(damage, st.none() | st.floats(0, 1))
@examples(60)
def test_a_damaged_file_is_never_an_error_and_takes_rows_again(tmp_path_factory, flips, cut):
    path = tmp_path_factory.mktemp("damaged") / f"a{ENDING}"
    made(path)
    content = bytearray(path.read_bytes())
    for place, bits in flips:
        content[int(place * len(content))] ^= bits
    path.write_bytes(content[:int(cut * len(content))] if cut is not None else content)
    found = Book(path)
    found.rows([*ROWS])
    found.write(ROWS)
    found.close()
    again = Book(path)
    kept = again.rows([*ROWS])
    again.close()
    assert not (found.problem or again.problem)
    if not flips:  # else a page that nobody has looked at may still be broken
        assert kept == ROWS


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0", os.urandom(5000)])
def test_a_file_that_is_none_is_begun_anew(tmp_path, content):
    path = tmp_path / f"a{ENDING}"
    path.write_bytes(content)
    assert made(path).rows([*ROWS]) == ROWS


def _spoiled(name: bytes, place: int = 0, new: bytes = b"\xe1\xe1\xe1"):
    """Replace the bytes that begin *place* after the first *name* in a file."""
    def spoil(content: bytearray) -> None:
        at = content.index(name) + place
        content[at:at + len(new)] = new
    return spoil


@pytest.mark.parametrize("spoil", [
    _spoiled(b"CREATE TABLE", 2), _spoiled(b"(key BLOB", 1), _spoiled(b"tableprices", 5), _spoiled(b"tableprices", 0),
    _spoiled(b"WITHOUT ROWID", 3), _spoiled(b"SQLite format 3\0", 18, b"\x09"),  # the version that may write it
], ids=["statement", "column", "name", "kind", "option", "writable"])
def test_damage_to_the_schema_or_the_header_begins_the_file_anew(tmp_path, spoil):
    path = tmp_path / f"a{ENDING}"
    made(path)
    content = bytearray(path.read_bytes())
    spoil(content)
    path.write_bytes(content)
    rows_of(path)
    again = made(path)
    assert again.rows([*ROWS]) == ROWS and not again.problem


@pytest.mark.parametrize("layout", ["prices (key BLOB PRIMARY KEY)", "prices (key TEXT, row TEXT, more TEXT)",
                                    "prices (a, b)", "others (key, row)"])
def test_a_file_of_another_layout_is_begun_anew(tmp_path, layout):
    path = tmp_path / f"a{ENDING}"
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE {layout}")
    connection.close()
    assert made(path).rows([*ROWS]) == ROWS


def test_what_a_killed_process_left_half_written_is_taken_back(tmp_path):
    path = tmp_path / f"a{ENDING}"
    made(path)
    killed = """if True:
        import os, sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("PRAGMA cache_size = 1")  # pages reach the file before the end
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO prices VALUES (?, ?)", ((os.urandom(16), bytes(900)) for _ in range(900)))
        os._exit(1)"""
    subprocess.run([sys.executable, "-c", killed, path], check=False)
    assert Path(f"{path}-journal").exists()
    found = Book(path)
    assert found.rows([*ROWS]) == ROWS
    assert rows_of(path) == len(ROWS)


def test_an_interrupt_while_rows_are_written_takes_them_back(tmp_path):
    class Interrupting(dict):
        def items(self):
            yield b"new", b"row"
            raise KeyboardInterrupt

    found = made(tmp_path / f"a{ENDING}")
    with pytest.raises(KeyboardInterrupt):
        found.write(Interrupting(some="rows"))
    found.write({b"another": b"row"})
    assert found.rows([*ROWS, b"new", b"another"]) == {**ROWS, b"another": b"row"}
    assert rows_of(found.path) == len(ROWS) + 1


@pytest.mark.parametrize("place", ["a file/in it", "a directory"])
def test_where_no_file_can_be_it_says_so_and_has_no_rows(tmp_path, place):
    (tmp_path / "a file").touch()
    (tmp_path / "a directory").mkdir()
    found = made(tmp_path / place)
    assert found.rows([*ROWS]) == {}
    assert found.problem.startswith(f"prices are not kept in {tmp_path / place}: ")


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 0)() == 0, reason="root may write anywhere")
def test_a_directory_that_is_read_only_is_read(tmp_path):
    path = tmp_path / f"a{ENDING}"
    made(path)
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    found = Book(path)
    assert found.rows([*ROWS]) == ROWS
    found.write({b"new": b"row"})
    assert "readonly" in found.problem


def test_while_somebody_else_holds_the_file_there_are_no_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(book, "PATIENCE", 0.01)
    path = tmp_path / f"a{ENDING}"
    made(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    found = Book(path)
    assert found.rows([*ROWS]) == {}
    assert "locked" in found.problem
    other.close()
    assert Book(path).rows([*ROWS]) == ROWS


def test_a_file_that_has_grown_too_large_is_begun_anew(tmp_path, monkeypatch):
    found = made(tmp_path / f"a{ENDING}")
    monkeypatch.setattr(book, "MOST", 1000)
    found.write({b"new": b"row"})
    assert found.rows([*ROWS, b"new"]) == {b"new": b"row"}


def test_few_files_are_kept_the_last_used_of_all(tmp_path):
    for number in range(FILES + 3):
        path = made(tmp_path / f"{number}{ENDING}", {b"key": b"row"}).path
        os.utime(path, (number, number))
        if number == FILES:
            os.utime(tmp_path / f"3{ENDING}", (1000, 1000))  # is used again
    assert {path.stem for path in files(tmp_path)} == {"3", *(str(number) for number in range(FILES + 3)[-FILES + 1:])}


def test_clearing_leaves_what_is_not_ours(tmp_path):
    made(tmp_path / f"a{ENDING}")
    (tmp_path / "else").touch()
    assert clear(tmp_path) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["else"]
    assert clear(tmp_path / "nowhere") == 0
