"""Colours, widths and moving lines: by the environment variables that other programs heed, and off in files."""

import io
import re

import pytest

from ksim.cli import terminal
from ksim.cli.flags import status
from ksim.cli.keep import Progress
from tests.cli.command import SCENARIO, ksim_here

ESCAPE = "\x1b["


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize(("environment", "wanted"), [
    ({}, None), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, None), ({"NO_COLOR": "0"}, False),
    ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "0"}, False), ({"FORCE_COLOR": "3", "NO_COLOR": "1"}, False),
    ({"CLICOLOR": "0"}, False), ({"CLICOLOR": "1"}, None), ({"CLICOLOR_FORCE": "1"}, True),
    ({"CLICOLOR_FORCE": "0"}, None), ({"CLICOLOR_FORCE": "1", "CLICOLOR": "0"}, True),
    ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
])
def test_who_asks_for_colours_is_settled_once(environment, wanted):
    terminal.settle(environment)
    assert environment.get("NO_COLOR") == ("1" if wanted is False else None)
    assert environment.get("FORCE_COLOR") == ("1" if wanted else None)


def shown(tmp_path, *words, **environment):
    clean = dict.fromkeys(("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"), "")
    outcome = ksim_here(*words, folder=tmp_path, **{**clean, "TERM": "xterm-256color", **environment})
    assert outcome.status == 0, outcome.stderr
    return outcome.stdout


def test_a_file_has_no_colours_unless_they_are_forced(tmp_path):
    plain = shown(tmp_path, "list", "traces")
    assert ESCAPE not in plain
    coloured = shown(tmp_path, "list", "traces", FORCE_COLOR="1")
    assert ESCAPE in coloured and re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert shown(tmp_path, "list", "traces", FORCE_COLOR="1", NO_COLOR="1") == plain
    assert shown(tmp_path, "list", "traces", FORCE_COLOR="1", TERM="dumb") == plain


def test_json_has_no_colours(tmp_path):
    assert ESCAPE not in shown(tmp_path, "list", "templates", "--json", "-", FORCE_COLOR="1")


def test_columns_says_how_wide_tables_are(tmp_path):
    assert max(map(len, shown(tmp_path, "list", "traces", COLUMNS="70").splitlines())) <= 70
    assert max(map(len, shown(tmp_path, "list", "traces").splitlines())) > 100


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_lines_move_on_terminals_alone(stream, term, monkeypatch):
    written = stream()
    monkeypatch.setattr("sys.stderr", written)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress(10, quiet=False) as progress:
        progress.advance()
    with status("reading") as line:
        line.update("still reading")
    assert bool(written.getvalue()) == (stream is Terminal and term == "xterm")


def test_a_terminal_without_unicode_gets_question_marks_and_no_error():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    terminal.never_fails(stream, io.StringIO())
    stream.write("±")
    stream.flush()
    assert stream.buffer.getvalue() == b"?"


def test_files_and_wide_have_all_columns(tmp_path):
    narrow, wide = (shown(tmp_path, "list", "gpus", *words, COLUMNS="80") for words in ((), ("--wide",)))
    assert "columns hidden" in narrow and max(map(len, narrow.splitlines())) <= 80
    assert wide == shown(tmp_path, "list", "gpus") and "hidden" not in wide


def test_a_report_in_a_file_has_whole_numbers(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO)
    text = shown(tmp_path, "run", "s.toml")
    assert max(map(len, text.splitlines())) <= 80
    table = text.partition("\nGPU time ")[2].partition("\n\n")[0].splitlines()
    assert table[0].split()[:3] == ["share", "energy", "bound"] and sum(" % " in line for line in table) > 5
    assert not any(line.strip().startswith("%") for line in table)
