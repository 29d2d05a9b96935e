"""Fleets of several models: each request ends at an engine of its own, and models do not touch each other."""

import json
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as some

from ksim.autoscaling import Decision
from ksim.cluster.models import ClusterOfModels
from ksim.engine.loop_times import Horizon
from ksim.flow.events import Finished, Refused, Rejected, Routed, Scaled
from ksim.flow.log import Log
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, KsimError
from ksim.scenario.scenario import Scenario
from ksim.simulation.assembly import build
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import simulate, stream
from tests.properties import examples

ONE, OTHER = "llama-3.2-1b", "qwen2.5-0.5b"
LENGTHS = {"prompt": {"kind": "uniform", "low": 50, "high": 400}, "output": {"kind": "uniform", "low": 2, "high": 30}}


def load(count=30, rate=40.0, **more):
    return {"synthetic": {"arrivals": {"rate": rate}, "count": count, **LENGTHS, **more}}


def pool(model=None, role="both", **more):
    return {"role": role, **({"model": model} if model else {}), **more}


def scenario(pools, mix, **more):
    return Scenario.of({"model": ONE, "gpu": "h200", "serve": {"max_model_len": 4096}, "pools": pools,
                        "workload": {"mix": mix}, **more})


TWO = {"a": pool(replicas=2), "b": pool(OTHER, replicas=2)}
MIX = {"x": load(), "y": {"model": OTHER, **load()}}


def models_of(result):
    """The model of each engine, by its number."""
    return {built.engine: built.model for built in result.log.engines}


def check(result):
    """Each request ended once, at an engine of its model."""
    asked = {request.id: request.model for request in result.history.requests.requests}
    served = models_of(result)
    ended = Counter(event.request_id for kind in (Finished, Rejected) for event in result.log.of(kind))
    assert ended == dict.fromkeys(asked, 1)
    for event in (*result.log.of(Finished), *result.log.of(Routed)):
        assert served[event.engine] == asked[event.request_id]
    for event in result.log.of(Routed):
        assert event.prefill_engine < 0 or served[event.prefill_engine] == asked[event.request_id]


@pytest.mark.parametrize("router", catalog.names("cluster.routers"))
def test_each_request_ends_once_at_an_engine_of_its_model(router):
    more = {"prefixes": {"groups": 2, "tokens": 64}}
    options = {"mooncake": {"name": "mooncake", "ttft_slo": "50 ms"}}
    check(simulate(scenario(TWO, {"x": load(**more), "y": {"model": OTHER, **load(**more)}},
                            router=options.get(router, router))))


ROLES = some.sampled_from([["both"], ["both", "both"], ["prefill", "decode"], ["prefill", "both"]])


@given(some.lists(ROLES, min_size=2, max_size=3), some.integers(0, 9),
       some.sampled_from([None, "none", "queue_limit", "fair_queue", {"name": "predicted_ttft", "ttft_slo": "30 ms"}]),
       some.sampled_from([None, 3]), some.booleans())
@examples(80)
def test_whatever_the_pools_each_request_ends_once_at_its_model(roles, seed, control, most, sessions):
    """Models that are split and those that are not, with and without a gateway, clients that wait, and sessions."""
    names = [ONE, OTHER, "qwen3-0.6b"]
    pools = {f"{place}-{index}": pool(names[place], role) for place, sides in enumerate(roles)
             for index, role in enumerate(sides)}
    more = {"sessions": {"turns": {"kind": "uniform", "low": 1, "high": 3}}} if sessions else {}
    made = scenario(pools, {f"w{place}": {"model": names[place], **load(12, **more)} for place in range(len(roles))},
                    seed=seed, **({"flow_control": control} if control else {}))
    check(simulate(made.with_values({"workload.max_concurrency": most}) if most else made))


@pytest.mark.parametrize("router", ["round_robin", "least_outstanding", "prefix_aware", "llm_d"])
def test_a_model_is_served_as_if_it_were_alone(router):
    """What another model's requests do changes nothing for those of one, whose engines nobody else uses."""
    both = simulate(scenario(TWO, MIX, router=router))
    alone = simulate(scenario({"a": TWO["a"]}, {"x": MIX["x"]}, router=router))
    rows = both.requests.filter([name == "x" for name in both.requests["workload"].to_pylist()])
    for column in ("engine", "arrival_s", "ttft_s", "e2e_s", "cached_tokens"):
        assert rows[column].to_pylist() == alone.requests[column].to_pylist()


def test_each_model_has_a_router_of_its_own():
    """Round robin goes on where it was with that model, however requests for both alternate."""
    mix = {"x": load(rate=20.0), "y": {"model": OTHER, **load(rate=20.0)}}
    for name in mix:
        mix[name]["synthetic"]["arrivals"] |= {"process": "constant"}
    result = simulate(scenario(TWO, mix))
    assert Counter(routed.engine for routed in result.log.of(Routed)) == dict.fromkeys(range(4), 15)


def test_a_model_without_a_ready_engine_holds_back_no_other():
    pools = {"a": pool(), "b": pool(OTHER, replicas=0, max_replicas=1, autoscaler={"name": f"{__name__}:One"})}
    result = simulate(scenario(pools, MIX, startup={"name": "default", "mode": "sleep_1"}))
    check(result)
    ready = next(moment for moment, state in result.log.engines[1].life if state == "ready")
    rows = result.requests
    held = {name: [seconds for seconds, workload in zip(rows["held_s"].to_pylist(), rows["workload"].to_pylist(),
                                                        strict=True) if workload == name] for name in "xy"}
    assert max(held["x"]) == 0 and min(held["y"]) > 0
    assert min(routed.time for routed in result.log.of(Routed) if routed.engine == 1) >= ready


@define
class One:
    """Wants one replica, and keeps what it sees."""

    interval: ClassVar[float] = 0.5
    seen: ClassVar[list] = []

    def decide(self, seen):
        One.seen.append(seen)
        return Decision(dict.fromkeys(seen.pools, 1))


@pytest.mark.parametrize("shared", [True, False])
def test_an_autoscaler_sees_the_requests_of_its_own_model(shared):
    """And one of the scenario's is one for each model."""
    One.seen.clear()
    own = {"autoscaler": {"name": f"{__name__}:One"}}
    pools = {"a": pool(max_replicas=2, **({} if shared else own)),
             "b": pool(OTHER, replicas=0, max_replicas=2, **({} if shared else own))}
    mix = {"x": load(25), "y": {"model": OTHER, **load(7)}}
    result = simulate(scenario(pools, mix, startup={"name": "default", "mode": "sleep_1"}, **(own if shared else {})))
    check(result)
    arrivals = {name: sum(seen.pools[name].arrivals for seen in One.seen if name in seen.pools) for name in pools}
    assert arrivals == {"a": 25, "b": 7}
    assert all(len(seen.pools) == 1 for seen in One.seen)
    assert max(seen.held for seen in One.seen if "a" in seen.pools) == 0
    assert max(seen.held for seen in One.seen if "b" in seen.pools) == 7
    assert {scaled.pool for scaled in result.log.of(Scaled)} == {"b"}


def test_requests_of_a_trace_name_their_models_and_strangers_are_refused_by_name(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"arrival,prompt,output,model\n0,90,4,{ONE}\n0.1,90,4,{OTHER}\n0.2,90,4,gpt-4\n0.3,90,4,\n")
    table = {"model": ONE, "gpu": "h200", "workload": {"replay": {"path": str(path)}}}
    result = simulate(Scenario.of({**table, "pools": TWO}))
    rows = result.requests.to_pylist()
    assert [row["status"] for row in rows] == ["completed", "completed", "rejected", "completed"]
    assert rows[2]["reason"] == f"no pool serves its model 'gpt-4'; there are {ONE}, {OTHER}"
    assert [models_of(result).get(row["engine"]) for row in rows] == [ONE, OTHER, None, ONE]
    assert [row["model"] for row in rows] == [ONE, OTHER, "gpt-4", ONE]
    plain = simulate(Scenario.of(table))
    assert plain.summary["completed"] == 4 and "model" not in plain.requests.column_names


def test_replicas_of_several_models_run_in_processes_of_their_own():
    made = scenario(TWO, {name: {**part, "synthetic": {**part["synthetic"], "count": 9}} for name, part in MIX.items()})
    result, alone = simulate(made, jobs=2), simulate(made)
    assert not result.remarks or "ran in one process" not in result.remarks[0]
    assert result.summary == alone.summary
    assert result.requests.equals(alone.requests)


def test_a_fleet_of_one_model_has_a_plain_cluster():
    one = build(Fleet.of(scenario({"a": pool(), "b": pool(ONE)}, {"x": load()})), Horizon(), Log(), lambda: None)
    two = build(Fleet.of(scenario(TWO, MIX)), Horizon(), Log(), lambda: None)
    assert not isinstance(one, ClusterOfModels) and isinstance(two, ClusterOfModels)
    assert [len(part.engines) for part in two.parts] == [2, 2]


def test_the_summary_names_every_model():
    made = scenario(TWO, MIX)
    assert simulate(made).summary["model_id"] == f"{ONE}, {OTHER}"
    assert Fleet.of(made).scenario.pools["b"].model == OTHER


def test_a_streamed_fleet_of_several_models_has_the_same_rows(tmp_path):
    made = scenario(TWO, MIX, slo={"ttft": "20 ms"})
    whole, streamed = simulate(made).summary, stream(made, tmp_path / "run").summary
    for table in ("workloads", "models"):
        for name, row in whole[table].items():
            for key in ("completed", "total_output_tokens", "request_goodput", "mean_ttft_ms", "slo_attainment"):
                assert streamed[table][name][key] == pytest.approx(row[key], rel=1e-9)
            assert streamed[table][name]["p99_ttft_ms"] == pytest.approx(row["p99_ttft_ms"], rel=0.01)


def test_each_workload_is_refused_by_its_own_target():
    """`predicted_ttft` knows the target of a request's workload."""
    mix = {"x": {**load(20, 400.0), "slo": {"ttft": "1 ms"}}, "y": {**load(20, 400.0), "slo": {"tpot": "1 s"}}}
    result = simulate(scenario({"a": pool()}, mix, flow_control="predicted_ttft"))
    refused = {event.request_id for event in result.log.of(Refused)}
    assert refused == {row["id"] for row in result.requests.to_pylist() if row["workload"] == "x"}


def test_adapters_are_those_of_the_pools_of_a_model():
    lora = {"enable_lora": True, "lora_modules": [{"name": "adapter", "count": 2}]}
    asks = load(adapters={"count": 2})
    made = scenario({"a": pool(serve=lora), "b": pool(OTHER)}, {"x": asks, "y": {"model": OTHER, **load()}})
    check(simulate(made))
    with pytest.raises(ConfigError, match=r"workload.mix.x.synthetic.adapters.*enable_lora is off"):
        Fleet.of(scenario({"a": pool(), "b": pool(OTHER, serve=lora)}, {"x": asks, "y": {"model": OTHER, **load()}}))


@pytest.mark.parametrize(("pools", "mix", "message"), [
    ({"a": pool(OTHER)}, {"x": load()}, f"workload.mix.x.model: is '{ONE}', and no pool serves it; name one of"),
    (TWO, {"x": {"model": "gpt2", **load()}}, "workload.mix.x.model: is 'gpt2', and no pool serves it"),
    ({"a": pool(), "b": pool("no-such")}, MIX, "no pool serves it|no model named 'no-such'"),
    ({"a": pool(), "b": pool(OTHER, "prefill")}, MIX, "pools.b.role: is 'prefill', and no pool decodes"),
    ({"a": pool(role="prefill"), "b": pool(OTHER, "decode")}, MIX, "pools.a.role: is 'prefill', and no pool decodes"),
])
def test_what_cannot_be_is_refused_by_name(pools, mix, message):
    with pytest.raises(KsimError, match=message):
        Fleet.of(scenario(pools, mix))


def test_a_pool_of_an_unknown_model_is_refused():
    with pytest.raises(KsimError, match="no model named 'no-such'"):
        Fleet.of(scenario({"a": pool(), "b": pool("no-such")}, {"x": load()}))


def test_kv_of_one_model_is_of_no_use_to_another(tmp_path):
    """Not in a tier that both share either, where the bytes of their blocks are equal."""
    models = {name: str(tmp_path / f"{name}.json") for name in ("one", "two")}
    for path in models.values():
        Path(path).write_text(json.dumps(catalog.load("models", ONE)))
    rows = [{"arrival": time, "prompt": 320, "output": 2, "hash_ids": [*range(20)], "model": models[name]}
            for time, name in ((0, "one"), (5, "two"), (10, "one"))]
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    offload = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "cpu_bytes_to_use": 2**28, "spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs"}]}}
    serve = {"max_model_len": 4096, "kv_transfer_config": offload}
    pools = {f"{name}{number}": {"role": "both", "model": path, "serve": serve} for name, path in models.items()
             for number in range(2)}
    made = Scenario.of({"model": models["one"], "gpu": "h200", "pools": pools,
                        "workload": {"replay": {"path": str(tmp_path / "t.jsonl")}}})
    found = simulate(made).requests.to_pylist()
    assert [row["status"] for row in found] == ["completed"] * 3
    assert [row["disk_tokens"] > 0 for row in found] == [False, False, True]
    assert [row["cached_tokens"] for row in found] == [0, 0, 0]
