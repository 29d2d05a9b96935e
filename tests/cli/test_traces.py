"""`ksim trace`, and docs/traces.md: its examples run, and its table says what the readers say."""

import re
from typing import Any

import pytest

from ksim.foundation.catalog import names
from ksim.workload.columns import FIELDS
from ksim.workload.reading import FOLDER, reader
from tests.cli.command import ROOT, ksim, ksim_here

PAGE = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
FILES = re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^    ksim (.*)$", PAGE, re.MULTILINE)
MILLIONS = "ts,in,out\n" + "".join(f"{1_700_000_000_000_000 + row * 3_541_000},10,5\n" for row in range(1001))


def shown(folder, *words):
    outcome = ksim_here("trace", *words, folder=folder)
    assert outcome.status == 0, outcome.stderr
    return outcome.stdout


@pytest.fixture
def folder(tmp_path):
    for name, content in FILES:
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def test_the_page_has_examples():
    assert len(FILES) == 6 and len(COMMANDS) == 11


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_run(folder, command):
    outcome = ksim_here(*command.split(), folder=folder)
    assert outcome.status == 0, outcome.stderr


def test_the_page_lists_every_format_as_its_reader_is():
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]*\| (\w+ \| \w+) \|.*\|.*\|$", PAGE, re.MULTILINE))
    readers: dict[str, Any] = {name: reader(name) for name in names(FOLDER)}
    assert rows == {name: f"{made.time_unit or 'none'} | {made.empty}" for name, made in readers.items()}


def test_the_page_lists_every_field():
    fields = PAGE.partition("| field |")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", fields, re.MULTILINE)) == FIELDS


@pytest.mark.parametrize(("unit", "span"), [
    (["--time-unit", "ms"], "in ms (--time-unit changes it): from first to last 40 days 23 h"),
    (["--time-unit", "us"], "in us (--time-unit changes it): from first to last 59 min 1 s"),
])
def test_the_printed_time_span_shows_a_wrong_unit(tmp_path, unit, span):
    (tmp_path / "t.csv").write_text(MILLIONS)
    assert span in shown(tmp_path, "t.csv", "--columns", "arrival=ts,prompt=in,output=out", *unit)


def test_times_that_span_decades_ask_for_a_unit(tmp_path):
    (tmp_path / "t.csv").write_text(MILLIONS)
    error = ksim("trace", "t.csv", "--columns", "arrival=ts,prompt=in,output=out", folder=tmp_path, code=1)
    assert "t.csv: arrivals span 11,598 days" in error and "--time-unit us" in error


def test_dates_and_traces_without_times_say_so(folder):
    assert "arrival times are dates: from first to last 1.75 s" in shown(
        folder, "calls.jsonl", "--columns", "arrival=sent,prompt=usage.prompt_tokens,output=usage.completion_tokens")
    printed = shown(folder, "chats.json")
    assert "chats.json: 3 requests, sharegpt format" in printed
    assert "no arrival times: to replay it, set --request-rate" in printed
    assert "note: token counts are estimated from the text, at 4 characters a token" in printed
    assert "arrivals (s" not in printed and "Poisson" not in printed


def test_every_format_is_listed(tmp_path):
    printed = ksim_here("list", "traces", folder=tmp_path).stdout
    assert all(re.search(rf"^ {name} +\S+", printed, re.MULTILINE) for name in names(FOLDER))


def test_rows_that_are_left_out_are_counted(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,5,1\n1,0,1\n2,5,0\n")
    printed = shown(tmp_path, "t.csv", "--skip-empty")
    assert "note: rows without output tokens (failed requests), dropped: 1" in printed
    assert "note: rows without prompt tokens, dropped: 1" in printed
