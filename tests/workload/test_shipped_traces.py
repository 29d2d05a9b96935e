"""The traces that come with ksim are made, and are, as their page says."""

import re
from pathlib import Path

import pytest

from ksim.workload.replay import Replay
from ksim.workload.statistics import measure

TRACES = Path(__file__).parents[2] / "traces"


def test_the_code_on_the_page_makes_the_same_traces(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", (TRACES / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    for name in ("conversation.csv", "sessions.jsonl"):
        assert (tmp_path / name).read_bytes() == (TRACES / name).read_bytes()


@pytest.mark.parametrize(("name", "requests", "rate"), [("conversation.csv", 400, 4.5), ("sessions.jsonl", 120, 0.4)])
def test_the_traces_have_the_sizes_and_rates_on_the_page(name, requests, rate):
    statistics = measure(Replay(TRACES / name).requests(0))
    assert statistics.requests == requests
    assert statistics.arrivals.rate == pytest.approx(rate, rel=0.05)
    assert statistics.total.at(1.0) <= 8192
