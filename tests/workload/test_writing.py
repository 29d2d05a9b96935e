"""Requests written as traces, and the traces that come with ksim."""

import re
from pathlib import Path

import pytest

from ksim.flow.request import Request
from ksim.workload.replay import Replay
from ksim.workload.statistics import measure
from ksim.workload.writing import mooncake_lines, plain_lines

TRACES = Path(__file__).parents[2] / "traces"
TALK = [
    Request(0, 0.0, 40, 10, ((0, 0), (0, 1), (0, 2)), session="a"),
    Request(1, 0.0, 70, 10, ((0, 0), (0, 1), (0, 2), (0, 3), (0, 4)), session="a", delay=1.5),
    Request(2, 0.25, 20, 10, priority=3),
]


def read_again(trace, lines, **options):
    return list(Replay(trace("".join(lines)), **options).requests(0))


def test_plain_round_trip(trace):
    assert [(r.arrival, r.prompt, r.output, r.priority, r.session, r.delay)
            for r in read_again(trace, plain_lines(TALK))] == [
        (r.arrival, r.prompt, r.output, r.priority, r.session, r.delay) for r in TALK]


def test_mooncake_round_trip(trace):
    again = read_again(trace, mooncake_lines(TALK), chunk_tokens=16)
    assert [(r.arrival, r.prompt, r.output, r.session, r.delay) for r in again] == [
        (r.arrival, r.prompt, r.output, r.session, r.delay) for r in TALK]
    assert [r.chunks for r in again] == [(0, 1, 2), (0, 1, 3, 4, 5), (6, 7)]


def test_the_traces_here_are_made_as_their_page_says(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", (TRACES / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    for name in ("conversation.csv", "sessions.jsonl"):
        assert (tmp_path / name).read_bytes() == (TRACES / name).read_bytes()


@pytest.mark.parametrize(("name", "requests", "rate"), [("conversation.csv", 400, 4.5), ("sessions.jsonl", 120, 0.4)])
def test_the_traces_here_are_what_their_page_says(name, requests, rate):
    statistics = measure(Replay(TRACES / name).requests(0))
    assert statistics.requests == requests
    assert statistics.arrivals.rate == pytest.approx(rate, rel=0.05)
    assert statistics.total.at(1.0) <= 8192
