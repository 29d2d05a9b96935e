"""What a user learns of a long run: before it, and while it goes on."""

import io
import sys

import pytest

from ksim.cli import keep
from ksim.cli.keep import Progress, duration
from ksim.scenario import model_card
from tests.cli.command import SCENARIO, TRACE, ksim_here

STREAMED = {"requests.parquet", "steps.parquet", "summary.json", "scenario.toml"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A scenario of 12 requests, which is long here."""
    monkeypatch.setattr(model_card, "MANY_REQUESTS", 11)
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    return tmp_path


def files(folder):
    return {path.name for path in (folder / "out").iterdir()}


@pytest.mark.parametrize(("flags", "problem"), [
    (("--model", "lama-3.2-1b"), "no model named 'lama-3.2-1b'"), (("--model", "deepseek-v3"), "does not fit"),
])
def test_what_cannot_be_deployed_is_refused_before_the_trace_is_read(tmp_path, monkeypatch, flags, problem):
    def read(_: object) -> None:
        pytest.fail("the trace was read")

    monkeypatch.setattr(model_card.WorkloadSize, "of", read)
    (tmp_path / "t.csv").write_text(TRACE, encoding="utf-8")
    outcome = ksim_here("replay", "t.csv", "--gpu", "h200", *flags, folder=tmp_path)
    assert outcome.status == 1 and problem in outcome.stderr


def test_a_long_run_is_written_while_it_goes_on_and_says_so(folder):
    outcome = ksim_here("run", "s.toml", "-o", "out", folder=folder)
    assert outcome.status == 0 and files(folder) == STREAMED
    assert outcome.stderr.startswith("ksim: about 12 requests and ") and outcome.stderr.count("\n") == 1
    assert "without plots, trace, kernels or attribution; --no-stream keeps the whole run" in outcome.stderr
    assert "Successful requests:                     12" in outcome.stdout


@pytest.mark.parametrize("words", [("--no-stream",), ("--trace-window", "0:1")])
def test_a_long_run_is_kept_where_that_is_asked_for_and_says_what_it_takes(words, folder):
    outcome = ksim_here("run", "s.toml", "-o", "out", "--no-plots", *words, folder=folder)
    assert outcome.status == 0 and {"attribution.parquet", "kernels.csv", "trace.json.gz"} < files(folder)
    assert "keeping the whole run may take 0.3 GB of memory and 0 s; --stream -o DIR" in outcome.stderr


def test_a_long_run_without_a_directory_is_kept(folder):
    outcome = ksim_here("run", "s.toml", folder=folder)
    assert "12 requests completed" in outcome.stdout and "--stream -o DIR" in outcome.stderr


def test_a_run_that_is_streamed_or_short_says_nothing(folder, monkeypatch):
    assert ksim_here("run", "s.toml", "-o", "out", "--stream", folder=folder).stderr == ""
    monkeypatch.setattr(model_card, "MANY_REQUESTS", 12)
    assert ksim_here("run", "s.toml", "--quiet", folder=folder).stderr == ""


def test_rows_of_replicas_are_written_by_one_process(folder):
    outcome = ksim_here("run", "s.toml", "-o", "out", "--stream", "--jobs", 2, "--set", "serve.data_parallel_size=2",
                        folder=folder)
    assert outcome.status == 0 and "runs in one process, not in 2: --stream" in outcome.stderr


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stderr, total, ended, quiet=False):
    """What a run of *total* requests writes to *stderr*."""
    before, sys.stderr = sys.stderr, stderr
    try:
        with Progress(total, quiet) as made:
            for _ in range(ended):
                made.advance()
            made.writing()
    finally:
        sys.stderr = before
    return stderr.getvalue()


def test_a_terminal_shows_how_much_is_done_and_the_time_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown(Terminal(), 1000, 400)
    assert "writing" in text and "400/400" in text and "left" in text


def test_elsewhere_a_line_says_so_now_and_then(monkeypatch):
    assert shown(io.StringIO(), 1000, 400) == ""  # it is over before the first of them
    monkeypatch.setattr(keep, "_PAUSE", -1.0)
    lines = shown(io.StringIO(), 1000, 400).splitlines()
    assert len(lines) == 5 and lines[-1].startswith("ksim: 400 requests ended after 0 s, 40% of about 1,000; about 0 s")
    assert "left" not in shown(io.StringIO(), 10, 400).splitlines()[-1]  # there are more than were thought


@pytest.mark.parametrize("stderr", [Terminal, io.StringIO])
def test_a_quiet_run_shows_nothing(stderr, monkeypatch):
    monkeypatch.setattr(keep, "_PAUSE", -1.0)
    assert shown(stderr(), 1000, 400, quiet=True) == ""


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"),
                                               (5400, "1.5 h")])
def test_times_are_said_in_words(seconds, text):
    assert duration(seconds) == text
