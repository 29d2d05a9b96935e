"""The same requests at any rate: common random numbers."""

from collections import Counter
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.request import Request
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError, DataError
from ksim.study.capacity.traffic import Traffic
from ksim.study.plan import replication_seed
from ksim.workload.replay import Workload
from tests.properties import examples

LENGTHS = {"kind": "lognormal", "median": 100, "sigma": 0.8}


def synthetic(process: str, **more: Any) -> Workload:
    own = {"burstiness": 0.3} if process == "gamma" else {}
    table = {"arrivals": {"process": process, "rate": 7.0, **own}, "prompt": LENGTHS, "output": LENGTHS, **more}
    return structure(Workload, {"synthetic": table}, "workload")


def content(request: Request) -> Request:
    return evolve(request, arrival=0.0)


@pytest.mark.parametrize("process", ["poisson", "gamma", "constant"])
@given(rate=st.floats(0.01, 1e4), seed=st.integers(0, 2**32))
@examples(40)
def test_rates_scale_the_time_axis_and_nothing_else(process, rate, seed):
    workload = synthetic(process, priorities=[0, 1], tenants={"a": 1.0, "b": 2.0}, prefixes={"groups": 3, "tokens": 64},
                         max_tokens=2000, sessions={"turns": {"kind": "uniform", "low": 1, "high": 4}})
    traffic = Traffic.of(workload, 60)
    one, other = list(traffic.requests(1.0, seed)), list(traffic.requests(rate, seed))
    assert list(map(content, one)) == list(map(content, other))
    np.testing.assert_allclose([request.arrival for request in one],
                               [request.arrival * rate for request in other], rtol=1e-9, atol=1e-9)


def test_longer_replications_begin_like_shorter_ones():
    one, other = (list(Traffic.of(synthetic("poisson"), count).requests(3.0, 5)) for count in (50, 200))
    assert other[:50] == one


def test_replications_differ_and_are_the_same_each_time():
    seeds = [replication_seed(seed, replication) for seed in range(20) for replication in range(20)]
    assert len(set(seeds)) == 400
    assert [replication_seed(7, number) for number in (0, 1)] == [7, replication_seed(7, 1)]  # as in any study


def test_what_has_no_rate_is_refused():
    burst = structure(Workload, {"synthetic": {"arrivals": {"process": "burst"}, "prompt": LENGTHS, "output": LENGTHS}},
                      "workload")
    with pytest.raises(ConfigError, match="a burst has no rate; choose the process poisson"):
        Traffic.of(burst, 10)
    with pytest.raises(ConfigError, match="max_concurrency: clients that wait for answers have no request rate"):
        Traffic.of(evolve(synthetic("poisson"), max_concurrency=4), 10)


# Traces.

def trace(folder: Path, rows: int, header: str = "arrival,prompt,output", row: str = "{time},{prompt},{output}",
          **replay: Any) -> Workload:
    path = folder / "trace.csv"
    lines = [row.format(time=place * 0.5 + (place % 7) * 0.01, prompt=100 + place, output=1 + place % 50, place=place,
                        session=f"s{place // 4}") for place in range(rows)]
    path.write_text("\n".join([header, *lines]) + "\n")
    columns = {name: name for name in header.split(",")}
    return structure(Workload, {"replay": {"path": str(path), "columns": columns, **replay}}, "workload")


def test_a_trace_is_resampled_in_blocks(tmp_path):
    traffic = Traffic.of(trace(tmp_path, 400), 300)
    assert traffic.note == "the trace is resampled in blocks of 20 consecutive requests"
    assert traffic.own_spread == 0.75
    drawn = list(traffic.requests(10.0, 3))
    assert [request.id for request in drawn] == list(range(300))
    rows = [request.prompt - 100 for request in drawn]
    blocks = [rows[begin:begin + 20] for begin in range(0, 300, 20)]
    assert all((after - before) % 400 == 1 for block in blocks for before, after in pairwise(block))
    assert len({block[0] for block in blocks}) > 10
    assert all(request.output == 1 + row % 50 for request, row in zip(drawn, rows, strict=True))
    arrivals = [request.arrival for request in drawn]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0
    assert arrivals[-1] == pytest.approx(30, rel=0.1)
    assert list(map(content, drawn)) == list(map(content, traffic.requests(99.0, 3)))


def test_a_trace_with_sessions_is_thinned(tmp_path):
    workload = trace(tmp_path, 400, "arrival,prompt,output,session", "{time},{prompt},{output},{session}")
    traffic = Traffic.of(workload, 400)
    assert traffic.note.startswith("the trace is thinned to a random half of its sessions")
    assert traffic.own_spread == 1.0
    drawn = list(traffic.requests(10.0, 3))
    sessions = [request.session for request in drawn]
    assert all(sessions.count(session) == 4 for session in set(sessions))
    assert 140 < len(drawn) < 260
    assert drawn[-1].arrival == pytest.approx(len(drawn) / 10, rel=0.25)
    other = {request.session for request in traffic.requests(10.0, 4)}
    assert other != set(sessions)


def test_what_traces_cannot_tell(tmp_path):
    with pytest.raises(DataError, match="has 100 requests, and the targets need 200 or more"):
        Traffic.of(trace(tmp_path, 100), 1000, 200)
    timeless = trace(tmp_path, 50, "prompt,output", "{prompt},{output}")
    with pytest.raises(DataError, match="has no arrival times; name a rate"):
        Traffic.of(timeless, 50)
    at_once = trace(tmp_path, 50, row="3,{prompt},{output}")
    with pytest.raises(DataError, match="all requests arrive at once"):
        Traffic.of(at_once, 50)


def test_a_trace_without_times_that_is_given_a_rate_is_fine(tmp_path):
    traffic = Traffic.of(trace(tmp_path, 50, "prompt,output", "{prompt},{output}", rate=3.0), 50)
    assert len(list(traffic.requests(5.0, 0))) == 50


FIXED = {"prompt": {"kind": "fixed", "value": 9}, "output": {"kind": "fixed", "value": 2}}


def mix(**more):
    """Two workloads that share 6/s, two to one, and one with 2/s of its own."""
    parts = {name: {"synthetic": {"arrivals": arrivals, **FIXED}} for name, arrivals in (
        ("a", {"share": 2.0}), ("b", {"share": 1.0}), ("c", {"rate": 2.0}))}
    return structure(Workload, {"arrivals": {"rate": 6.0}, "mix": {**parts, **more}})


@given(rate=st.floats(0.5, 500), seed=st.integers(0, 9))
@examples(40)
def test_a_mix_comes_faster_or_slower_together(rate, seed):
    """The same requests of each workload, in the same order of its own, at other times."""
    traffic = Traffic.of(mix(), 800)
    requests = [*traffic.requests(rate, seed)]
    usual = [*traffic.requests(8.0, seed)]
    assert traffic.at(8.0).arrivals == mix().arrivals
    assert len(requests) == 800 and [*map(attrgetter("workload"), requests)] == [*map(attrgetter("workload"), usual)]
    assert [request.arrival * rate for request in requests] == pytest.approx(
        [request.arrival * 8.0 for request in usual])
    shares = Counter(request.workload for request in requests)
    assert [shares[name] for name in "abc"] == pytest.approx([400, 200, 200], abs=75)


@pytest.mark.parametrize(("part", "message"), [
    ({"replay": {"path": "t.csv"}}, "workload.mix.d.replay: a trace in a mix cannot be sped up"),
    ({"synthetic": {"arrivals": [{"rate": 1, "for": "9 s"}], **FIXED}},
     "workload.mix.d.synthetic.arrivals: phases have"),
    ({"synthetic": {"arrivals": {"process": "burst"}, **FIXED}}, "workload.mix.d.synthetic.arrivals: a burst has no"),
    ({"synthetic": {"arrivals": {"rate": 1, "spikes": [{"at": 0, "rate": 1, "for": "1 s"}]}, **FIXED}}, "spikes have"),
    ({"synthetic": {"arrivals": {"points": [{"at": 0, "rate": 1}, {"at": "9 s", "rate": 1}]}, **FIXED}}, "tables have"),
])
def test_a_mix_that_has_not_one_rate_each_is_refused_by_its_key(part, message):
    with pytest.raises(ConfigError, match=message):
        Traffic.of(mix(d=part), 100)
