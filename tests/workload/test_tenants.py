"""Tenants of requests: from a column of a trace, or drawn by weight."""

from collections import Counter

import pytest

from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import Scenario
from ksim.workload.replay import Replay

BURST = {"arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 100},
         "output": {"kind": "fixed", "value": 10}, "count": 2000}


def scenario(**synthetic):
    return Scenario.of({"model": "llama-3.1-8b", "gpu": "h200", "workload": {"synthetic": {**BURST, **synthetic}}})


def drawn(**synthetic):
    return list(scenario(**synthetic).workload.requests(0))


def test_a_trace_may_name_tenants(trace):
    path = trace("arrival,prompt,output,tenant\n0,10,5,alice\n1,10,5,\n2,10,5,bob\n")
    requests = list(Replay(path).requests(0))
    assert [request.tenant for request in requests] == ["alice", "", "bob"]


def test_without_tenants_requests_have_no_tenant():
    assert {request.tenant for request in drawn()} == {""}


def test_tenants_are_drawn_by_weight():
    counts = Counter(request.tenant for request in drawn(tenants={"alice": 3, "bob": 1.0}))
    assert counts.keys() == {"alice", "bob"}
    assert counts["alice"] / counts["bob"] == pytest.approx(3, rel=0.15)


def test_a_session_has_one_tenant():
    sessions = {"turns": {"kind": "fixed", "value": 3}}
    requests = drawn(tenants={"alice": 1, "bob": 1}, sessions=sessions)
    assert len({(request.session, request.tenant) for request in requests}) == len({r.session for r in requests})


def test_tenants_change_no_arrivals_and_lengths():
    plain, shared = drawn(), drawn(tenants={"alice": 1, "bob": 1})
    assert [(r.arrival, r.prompt, r.output) for r in plain] == [(r.arrival, r.prompt, r.output) for r in shared]


def test_a_scenario_with_tenants_can_be_written_and_read_again():
    import tomllib

    asked = scenario(tenants={"alice": 3, "bob": 1.0})
    assert Scenario.of(tomllib.loads(asked.to_toml())) == asked


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), "much"])
def test_a_faulty_weight_of_a_tenant_is_an_error(weight):
    with pytest.raises(ConfigError, match="tenants"):
        scenario(tenants={"alice": weight})
