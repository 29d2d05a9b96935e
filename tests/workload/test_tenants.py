"""Whose a request is: a column of a trace, or drawn by weight."""

from collections import Counter

import pytest

from ksim.foundation.errors import ConfigError
from ksim.simulation.scenario import Scenario
from ksim.workload.replay import Replay
from ksim.workload.writing import plain_lines

BURST = {"arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 100},
         "output": {"kind": "fixed", "value": 10}, "count": 2000}


def scenario(**synthetic):
    return Scenario.of({"model": "llama-3.1-8b", "gpu": "h200", "workload": {"synthetic": {**BURST, **synthetic}}})


def drawn(**synthetic):
    return list(scenario(**synthetic).workload.requests(0))


def test_a_trace_may_name_them(trace):
    path = trace("arrival,prompt,output,tenant\n0,10,5,alice\n1,10,5,\n2,10,5,bob\n")
    requests = list(Replay(path).requests(0))
    assert [request.tenant for request in requests] == ["alice", "", "bob"]
    again = Replay(trace("".join(plain_lines(requests)))).requests(0)
    assert [request.tenant for request in again] == ["alice", "", "bob"]


def test_without_them_they_have_no_name():
    assert {request.tenant for request in drawn()} == {""}


def test_they_are_drawn_by_weight():
    counts = Counter(request.tenant for request in drawn(tenants={"alice": 3, "bob": 1.0}))
    assert counts.keys() == {"alice", "bob"}
    assert counts["alice"] / counts["bob"] == pytest.approx(3, rel=0.15)


def test_a_session_is_of_one():
    sessions = {"turns": {"kind": "fixed", "value": 3}}
    requests = drawn(tenants={"alice": 1, "bob": 1}, sessions=sessions)
    assert len({(request.session, request.tenant) for request in requests}) == len({r.session for r in requests})


def test_they_change_nothing_else():
    plain, shared = drawn(), drawn(tenants={"alice": 1, "bob": 1})
    assert [(r.arrival, r.prompt, r.output) for r in plain] == [(r.arrival, r.prompt, r.output) for r in shared]


def test_a_scenario_with_them_reads_back_as_it_was_written():
    import tomllib

    asked = scenario(tenants={"alice": 3, "bob": 1.0})
    assert Scenario.of(tomllib.loads(asked.to_toml())) == asked


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), "much"])
def test_a_weight_must_be_one(weight):
    with pytest.raises(ConfigError, match="tenants"):
        scenario(tenants={"alice": weight})
