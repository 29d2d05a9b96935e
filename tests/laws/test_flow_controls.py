"""Whatever the flow control: every request ends once, weights are kept to, and what is off changes nothing."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim import Scenario, simulate
from ksim.cluster.flow_controls.fair_queue import FairQueue
from ksim.flow.events import Arrived, Finished, Held, Received, Refused, Rejected, Routed
from ksim.flow.request import Request
from ksim.foundation import catalog
from tests.laws.happenings import facts, times
from tests.laws.tiny import TINY, uniform
from tests.properties import examples

NAMES = catalog.names("cluster.flow_controls")
#: So full that some wait and some are refused.
TIGHT = {"queue_limit": {"queue_depth_threshold": 1, "max_requests": 1, "default_request_ttl": "30 ms"},
         "fair_queue": {"queue_depth_threshold": 1, "max_requests": 1, "default_request_ttl": "30 ms",
                        "weights": {"a": 2.0}},
         "predicted_ttft": {"ttft_slo": "3 ms"}, "none": {}}
#: Metrics as they are at each moment.
EXACT = {"scrape_interval": "0 s"}
retries = st.none() | st.fixed_dictionaries({"max_retries": st.integers(0, 3), "initial_delay": st.just("20 ms")})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


def run(model, flow_control=None, workload=(), **more):
    return simulate(Scenario.of({
        "model": model, "gpu": "h100", "router": "least_outstanding",
        "serve": {"data_parallel_size": 2, "max_num_seqs": 4, "max_model_len": 2048},
        **({"flow_control": flow_control} if flow_control else {}), **more,
        "workload": {"synthetic": {
            "count": 30, "arrivals": {"process": "poisson", "rate": 1500}, "output": uniform(2, 25),
            "prompt": {"kind": "fixed", "value": 500}}, **dict(workload)}}))


@pytest.mark.parametrize("name", NAMES)
@given(patience=retries, seed=st.integers(0, 9), interval=st.sampled_from(["0 s", "5 ms"]))
@examples(12)
def test_every_request_ends_once(model, name, patience, seed, interval):
    log = run(model, {"name": name, **TIGHT[name]}, {"retries": patience} if patience else {}, seed=seed,
              signals={"scrape_interval": interval}).log
    arrived = Counter(event.request.id for event in log.of(Arrived))
    ended = Counter(event.request_id for kind in (Finished, Rejected) for event in log.of(kind))
    assert arrived == ended == Counter(range(30))
    routed, got = (Counter(event.request_id for event in log.of(kind)) for kind in (Routed, Received))
    assert routed == got == Counter(event.request_id for event in log.of(Finished))
    refused = Counter(event.request_id for event in log.of(Refused))
    assert all(count <= 1 + (patience or {}).get("max_retries", 0) for count in refused.values())
    assert {event.request_id for event in log.of(Refused) if event.last} == {
        event.request_id for event in log.of(Rejected)}
    assert all(event.since < event.time for event in log.of(Held))


def test_equal_seeds_give_equal_runs(model):
    one, same, other = (run(model, {"name": "predicted_ttft", **TIGHT["predicted_ttft"]},
                            {"retries": {"initial_delay": "20 ms"}}, seed=seed) for seed in (1, 1, 2))
    assert one.summary == same.summary != other.summary
    assert [*one.log.of(Refused)] == [*same.log.of(Refused)] != []


@pytest.mark.parametrize("changes", [{"flow_control": "none"}, {"workload": {"retries": {}}},
                                     {"flow_control": {"name": "queue_limit", "queue_depth_threshold": 10**6,
                                                       "kv_cache_util_threshold": 1.0,
                                                       "metrics_staleness_threshold": "100 s"}}])
def test_a_gateway_that_holds_nobody_changes_nothing(model, changes):
    plain, gated = run(model), run(model, **changes)
    assert facts(gated.log) == facts(plain.log)
    assert times(gated.log) == times(plain.log)
    assert gated.summary.items() >= plain.summary.items()
    if "name" not in changes.get("flow_control", ""):
        assert gated.summary == plain.summary


@pytest.mark.parametrize("name", sorted({*NAMES} - {"none"}))
def test_time_at_the_gateway_is_told(model, name):
    """Attempts, the time held and the phases add up to the time to the first token."""
    result = run(model, {"name": name, **TIGHT[name]}, {"retries": {"max_retries": 1, "initial_delay": "5 ms"}},
                 signals=EXACT)
    rows = result.requests.to_pylist()
    refused = Counter(event.request_id for event in result.log.of(Refused))
    last = {event.request_id for event in result.log.of(Rejected)}
    assert [row["attempts"] for row in rows] == [refused[row["id"]] + (row["id"] not in last) for row in rows]
    summary = result.summary
    assert summary["attempts"] == summary["retries"] + 30 == sum(row["attempts"] for row in rows)
    assert summary["rejected"] == len(last) == 30 - summary["completed"] > 0
    held = [row["held_s"] for row in rows if row["held_s"]]
    assert summary["held_requests"] == len(held) and (name == "predicted_ttft" or held)
    choices = result.routing.to_pylist()
    assert {row["request"]: row["attempt"] for row in choices} == {
        number: refused[number] for number in range(30) if number not in last}
    told = " ".join(insight.text for insight in result.insights)
    assert ("held at the gateway" in told) == bool(held) and "times again after a refusal" in told
    by_id = {row["id"]: row for row in rows}
    for phases in result.attribution.to_pylist():
        row = by_id[phases["id"]]
        assert phases["to_first.held"] == pytest.approx(row["held_s"])
        assert phases["to_first.held"] + phases["to_first.back_off"] < row["ttft_s"]
        assert (phases["to_first.back_off"] > 0) == (row["attempts"] > 1)


backlog = st.lists(st.integers(1, 500), min_size=20, max_size=60)


@given(one=backlog, other=backlog, weight=st.sampled_from([0.25, 1.0, 3.0]))
@examples(100)
def test_a_fair_queue_keeps_to_weights_within_a_request_each(one, other, weight):
    """Golestani 1994: while both have requests in the queue, what they got over their weights is as much, but for one
    request of each."""
    control = FairQueue(weights={"a": weight, "b": 1.0}, output_tokens=0)
    queues = {"a": [*one], "b": [*other]}
    bound, got = max(one) / weight + max(other), {"a": 0.0, "b": 0.0}
    shares = {"a": weight, "b": 1.0}
    history = [0.0]
    while all(queues.values()):
        flow = control.pick({name: Request(0, 0.0, queue[0], 1, tenant=name) for name, queue in queues.items()})
        got[flow] += queues[flow].pop(0) / shares[flow]
        history.append(got["a"] - got["b"])
    assert max(history) - min(history) <= bound * (1 + 1e-9)


def test_weights_decide_who_waits(model, tmp_path):
    """Two tenants ask for as much; the one with three times the weight is held less."""
    path = tmp_path / "trace.csv"
    path.write_text("t,p,o,who\n" + "".join(f"{2e-3 * place},500,20,{'ab'[place % 2]}\n" for place in range(80)))
    columns = {"arrival": "t", "prompt": "p", "output": "o", "tenant": "who"}
    result = run(model, {"name": "fair_queue", "queue_depth_threshold": 1, "weights": {"a": 3.0}},
                 {"synthetic": None, "replay": {"path": str(path), "columns": columns}}, signals=EXACT)
    tenants = result.summary["tenants"]
    assert tenants["a"]["requests"] == tenants["b"]["requests"] == 40
    assert tenants["a"]["mean_held_ms"] < 0.7 * tenants["b"]["mean_held_ms"]
