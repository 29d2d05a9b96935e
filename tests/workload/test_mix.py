"""Several workloads in one scenario: one stream of requests, of which each workload has its own."""

import itertools
import tomllib
from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as some

from ksim.foundation.config import structure
from ksim.foundation.errors import KsimError
from ksim.scenario.model_card import WorkloadSize
from ksim.scenario.scenario import Scenario
from ksim.workload.replay import Workload
from ksim.workload.rows import Ledger
from tests.properties import examples

LENGTHS = {"prompt": {"kind": "uniform", "low": 20, "high": 90}, "output": {"kind": "uniform", "low": 2, "high": 9}}
FURTHER = some.fixed_dictionaries({}, optional={
    "prefixes": some.just({"groups": 2, "tokens": 64}), "tenants": some.just({"a": 1.0, "b": 2.0}),
    "sessions": some.just({"turns": {"kind": "uniform", "low": 1, "high": 3}}), "priorities": some.just([0, 1])})
OWN = some.builds(lambda rate, count, more: {"arrivals": {"rate": rate}, "count": count, **LENGTHS, **more},
                  some.floats(0.5, 50), some.integers(1, 40), FURTHER)
SHARED = some.builds(lambda share, more: {"arrivals": {"share": share}, **LENGTHS, **more}, some.floats(0.1, 9),
                     FURTHER)
PARTS = some.lists(some.builds(dict, synthetic=OWN | SHARED), min_size=1, max_size=4)


def workload(parts, **more):
    """The mix of *parts* called a, b and so on, with arrivals for those that have a share."""
    named = dict(zip("abcd", parts, strict=False))
    shares = any("share" in part.get("synthetic", {}).get("arrivals", {}) for part in parts)
    common = {"arrivals": {"rate": 9.0}, "count": 50} if shares else {}
    return structure(Workload, {**common, "mix": named, **more})


def of(name, requests):
    """The requests of one workload, numbered among themselves."""
    own = (request for request in requests if request.workload == name)
    return [evolve(request, id=number) for number, request in enumerate(own)]


@given(PARTS, some.integers(0, 9))
@examples(80)
def test_requests_come_by_arrival_numbered_from_0(parts, seed):
    made = workload(parts)
    requests = [*made.requests(seed)]
    assert [request.id for request in requests] == [*range(len(requests))]
    assert all(one.arrival <= other.arrival for one, other in pairwise(requests))
    assert requests == [*made.requests(seed)]
    assert {request.workload for request in requests} <= {*made.mix}


@given(PARTS, some.builds(dict, synthetic=OWN), some.integers(0, 9))
@examples(80)
def test_a_workload_is_as_it_is_whatever_the_others_are(parts, other, seed):
    """Further ones leave it, and so does another in the place of the last, where that has arrivals of its own."""
    usual = [*workload(parts).requests(seed)]
    more = [*workload([*parts[:3], other]).requests(seed)]
    shared = "share" in parts[-1]["synthetic"]["arrivals"] and len(parts) == 4
    for name in "abc"[:len(parts)] if not shared else ():
        assert of(name, more) == of(name, usual)


@given(PARTS, some.integers(0, 9))
@examples(60)
def test_other_lengths_of_one_leave_the_others(parts, seed):
    longer = [{"synthetic": {**parts[0]["synthetic"], "prompt": {"kind": "fixed", "value": 500}}}, *parts[1:]]
    usual, changed = [*workload(parts).requests(seed)], [*workload(longer).requests(seed)]
    for name in "bcd"[:len(parts) - 1]:
        assert of(name, changed) == of(name, usual)
    assert all(request.prompt >= 500 for request in changed if request.workload == "a")


@given(OWN, some.integers(0, 9))
@examples(60)
def test_one_alone_is_the_plain_workload(load, seed):
    """But for what it is called, and what that does to names of sessions and prompts."""
    plain = [*structure(Workload, {"synthetic": load}).requests(seed)]
    alone = [*workload([{"synthetic": load}]).requests(seed)]
    assert [evolve(request, workload="", session=request.session.removeprefix("a/"),
                   chunks=(request.chunks[0][1], *request.chunks[1:]) if request.chunks else ())
            for request in alone] == plain


@given(some.lists(some.floats(0.1, 9), min_size=1, max_size=4), some.integers(0, 9))
@examples(60)
def test_shares_part_the_common_arrivals(shares, seed):
    """Each of these goes to one workload, and about as many to each as it has of the sum."""
    loads = [{"synthetic": {"arrivals": {"share": share}, **LENGTHS}} for share in shares]
    made = workload(loads, count=2000)
    arrivals = [request.arrival for request in made.requests(seed)]
    alone = workload([{"synthetic": {"arrivals": {"share": 1.0}, **LENGTHS}}], count=2000)
    assert arrivals == [request.arrival for request in alone.requests(seed)]
    for name, share in zip("abcd", shares, strict=False):
        expected = 2000 * share / sum(shares)
        assert len(of(name, made.requests(seed))) == pytest.approx(expected, abs=5 * (2000 * 0.25) ** 0.5)


def test_prompts_and_sessions_of_two_workloads_have_nothing_to_do_with_each_other():
    load = {"synthetic": {"arrivals": {"rate": 5.0}, "count": 9, "prefixes": {"groups": 1, "tokens": 64},
                          "sessions": {"turns": {"kind": "fixed", "value": 3}}, **LENGTHS}}
    a, b = (of(name, workload([load, load]).requests(0)) for name in "ab")
    assert not {request.session for request in a} & {request.session for request in b}
    assert not {request.chunks[0] for request in a} & {request.chunks[0] for request in b}
    assert [request.arrival for request in a] != [request.arrival for request in b]
    assert len({request.chunks[0] for request in a}) == 1


def test_requests_carry_the_model_and_the_tenant_of_their_workload(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output,tenant,model\n0,9,2,x,m\n1,9,2,y,\n")
    replay = {"replay": {"path": str(tmp_path / "t.csv")}}
    load = {"synthetic": {"arrivals": {"rate": 5.0}, "count": 3, **LENGTHS}, "model": "n", "tenant": "z"}
    requests = [*workload([replay, {**replay, "model": "o", "tenant": "w"}, load]).requests(0)]
    assert [(each.model, each.tenant) for each in of("a", requests)] == [("m", "x"), ("", "y")]
    assert {(each.model, each.tenant) for each in of("b", requests)} == {("o", "w")}
    assert {(each.model, each.tenant) for each in of("c", requests)} == {("n", "z")}


def test_a_mix_is_a_stream():
    """The first requests come at once, however many there are."""
    load = {"synthetic": {"arrivals": {"rate": 1000.0}, "count": 10**9, **LENGTHS}}
    shared = {"synthetic": {"arrivals": {"share": 1.0}, **LENGTHS}}
    assert len([*itertools.islice(workload([load, shared, load], count=10**8).requests(0), 1000)]) == 1000


def test_what_reading_traces_changed_is_told_by_workload(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,9,2\n0,9,2\n5,9,2\n")
    replay, ledger = {"replay": {"path": str(tmp_path / "t.csv"), "end": "3 s"}}, Ledger()
    assert len([*workload([replay, replay]).requests(0, ledger)]) == 4
    assert (ledger.outside_window, ledger.ties, ledger.requests) == (2, 2, 4)


def test_the_size_of_a_mix_is_that_of_its_parts():
    shared = {"synthetic": {"arrivals": {"share": 1.0}, **LENGTHS}}
    own = {"synthetic": {"arrivals": [{"rate": 20, "for": "2 s"}], **LENGTHS}}
    table = {"model": "llama-3.1-8b", "gpu": "h200", "workload": {
        "arrivals": {"rate": 9.0}, "count": 50, "mix": {"a": shared, "b": shared, "c": own}}}
    assert WorkloadSize.of(Scenario.of(table)).requests == 50 + 41


def test_a_scenario_with_a_mix_reads_back():
    table = {"model": "llama-3.1-8b", "gpu": "h200", "workload": {"arrivals": {"rate": 9.0}, "mix": {
        "a": {"synthetic": {"arrivals": {"share": 1.0}, **LENGTHS}, "slo": {"ttft": "1 s"}, "tenant": "t"}}}}
    made = Scenario.of(table)
    assert Scenario.of(tomllib.loads(made.to_toml())) == made
    assert made.with_values({"workload.mix.a.slo.ttft": "2 s"}).workload.mix["a"].slo.ttft == 2.0
    plain = Scenario.of({**table, "workload": {"synthetic": {"arrivals": {"rate": 9.0}, **LENGTHS}}})
    assert "mix" not in plain.to_toml()


LOAD = {"arrivals": {"rate": 1.0}, **LENGTHS}
PART = {"synthetic": {"arrivals": {"share": 1.0}, **LENGTHS}}


@pytest.mark.parametrize(("said", "message"), [
    ({}, "a workload is either replay or synthetic, or a mix of such"),
    ({"mix": {}}, "a workload is either replay or synthetic, or a mix of such"),
    ({"mix": {"a": {"synthetic": LOAD}}, "synthetic": {"count": 3}}, "is beside a mix; leave it out, or put it under"),
    ({"mix": {"a": {}}}, "workload.mix.a: is either replay or synthetic"),
    ({"mix": {"a b": {"synthetic": LOAD}}}, "'a b' is no name"),
    ({"mix": {"a": PART}}, "workload.mix.a.synthetic.arrivals.share is of workload.arrivals, and there are none"),
    ({"synthetic": PART["synthetic"]}, "workload.synthetic.arrivals.share is of workload.arrivals"),
    ({"mix": {"a": {"synthetic": LOAD}}, "arrivals": {"rate": 1}}, "no workload of the mix has a share"),
    ({"mix": {"a": PART}, "arrivals": {"share": 1}}, "arrivals.share is of these arrivals themselves"),
    ({"mix": {"a": {"synthetic": {**PART["synthetic"], "count": 3}}}, "arrivals": {"rate": 1}}, "set workload.count"),
    ({"mix": {"a": PART}, "arrivals": [{"rate": 1}]}, "arrivals.phases have no end"),
    ({"mix": {"a": {"synthetic": {**LENGTHS, "arrivals": {"share": -1}}}}, "arrivals": {"rate": 1}},
     "workload.mix.a.synthetic.arrivals: 'share' must be >= 1e-09: -1"),
    ({"mix": {"a": {**PART, "shares": 1}}, "arrivals": {"rate": 1}}, "workload.mix.a.shares: unknown key"),
    ({"synthetic": LOAD, "count": 5}, "count is of workload.arrivals; set it in synthetic"),
    ({"mix": {"a": {**PART, "model": "qwen2.5-7b"}}, "arrivals": {"rate": 1}},
     "workload.mix.a.model: is 'qwen2.5-7b', and no pool serves it; name one of llama-3.1-8b, or add a pool"),
])
def test_a_faulty_mix_is_an_error_by_key(said, message):
    with pytest.raises(KsimError, match=message):
        Scenario.of({"model": "llama-3.1-8b", "gpu": "h200", "workload": said})
