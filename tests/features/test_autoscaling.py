"""Pools that autoscalers scale while they serve."""

from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from attrs import define

from ksim.autoscaling import Decision
from ksim.cluster.prefix_index import PrefixIndex, PrefixTree
from ksim.flow.events import Finished, Received, Routed, Scaled
from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.results import streaming
from ksim.results.history import absent
from ksim.results.series import power
from ksim.scenario.scenario import Scenario
from ksim.scenario.startup import engine_load, startup_of
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import simulate, stream

#: When `Steps` looks, and what it wants then.
LOOK = 2.0


@define
class Steps:
    """Wants the numbers in `sizes` of every pool, one at each look, and the last one from then on."""

    interval: ClassVar[float] = LOOK
    sizes: tuple[int, ...]
    seen: ClassVar[list] = []

    def decide(self, seen):
        Steps.seen.append(seen)
        size, *self.sizes = self.sizes if len(self.sizes) > 1 else (*self.sizes, *self.sizes)
        return Decision(dict.fromkeys(seen.pools, size), f"{size} are next")


def table(sizes=None, replicas=1, places=3, rate=10.0, count=300, **more):
    scaler = {} if sizes is None else {"autoscaler": {"name": f"{__name__}:Steps", "sizes": [*sizes]}}
    return {"model": "llama-3.2-1b", "gpu": "h200", "router": "round_robin", "serve": {"max_model_len": 4096},
            "startup": {"name": "default", "mode": "sleep_1"},
            "pools": {"a": {"role": "both", "replicas": replicas, "max_replicas": places}},
            "workload": {"synthetic": {"count": count, "arrivals": {"process": "constant", "rate": rate},
                                       "prompt": {"kind": "fixed", "value": 200},
                                       "output": {"kind": "fixed", "value": 10}}}, **scaler, **more}


def served(*args, **more):
    return simulate(Scenario.of(table(*args, **more)))


def lives(result):
    return [[state for _, state in built.life] for built in result.log.engines]


def test_replicas_start_serve_and_go():
    result = served((3, 3, 3, 3, 1))
    assert lives(result)[0] == ["ready"] and lives(result)[2][:3] == ["gone", "starting", "ready"]
    assert lives(result)[2][-1] == "gone"
    assert [(scaled.before, scaled.replicas) for scaled in result.log.of(Scaled)] == [(1, 3), (3, 1)]
    assert {routed.engine for routed in result.log.of(Routed)} == {0, 1, 2}
    life = {state: moment for moment, state in result.log.engines[2].life}
    fleet = Fleet.of(Scenario.of(table((1,))))
    starts = startup_of(fleet.scenario.startup).parts(engine_load(fleet.pools[0].deployment))
    assert life["ready"] - life["starting"] >= sum(part.seconds for part in starts) - 1e-9


@pytest.mark.parametrize("sizes", [(1,), (3, 1, 2), (2, 0, 0, 0, 0, 0, 0, 3), (1, 3, 3, 3, 3, 2, 2, 1)])
def test_each_request_ends_once_and_only_ready_engines_get_new_ones(sizes):
    result = served(sizes)
    ended = [finished.request_id for finished in result.log.of(Finished)]
    assert sorted(ended) == list(range(300))
    lives_of = {built.engine: built.life for built in result.log.engines}
    for routed in result.log.of(Routed):
        states = [state for moment, state in lives_of[routed.engine] if moment <= routed.time]
        assert states[-1] == "ready" or routed.time in [moment for moment, _ in lives_of[routed.engine]]


def test_requests_wait_at_the_gateway_while_there_is_no_replica():
    Steps.seen.clear()
    result = served((0, 1), replicas=0, places=1, count=20)
    ready = next(moment for moment, state in result.log.engines[0].life if state == "ready")
    assert min(received.time for received in result.log.of(Received)) >= ready
    assert result.summary["completed"] == 20
    assert max(seen.held for seen in Steps.seen) == 20


def test_a_fleet_that_nobody_scales_up_again_is_refused():
    with pytest.raises(ConfigError, match="has asked for no replica of a for a week"):
        served((0,), replicas=0, places=1, count=3, autoscaler={
            "name": "schedule", "replicas": 0, "interval": "3600 s",
            "periods": [{"start": "0 9 * * 1", "end": "1 9 * * 1", "replicas": 0}]})


def test_gpus_cost_from_the_first_second_of_a_start_to_the_end_of_a_drain():
    result = served((2, 2, 2, 2, 2, 1), energy={"price_per_gpu_hour": 3600.0})
    summary, duration = result.summary, result.summary["duration"]
    alone = 3 * duration - absent(result.log.engines, duration).sum()
    assert summary["allocated_gpu_seconds"] == pytest.approx(alone)
    assert duration < alone < 3 * duration
    assert summary["gpu_dollars"] == pytest.approx(alone)
    assert summary["static_energy_joules"] == pytest.approx(alone * result.log.engines[0].static_watts)
    assert summary["mean_gpus"] == pytest.approx(alone / duration)
    assert (summary["min_engines"], summary["max_engines"]) == (1, 2)


def test_an_autoscaler_that_changes_nothing_leaves_the_run_as_it_is():
    plain, scaled = served(None, replicas=2, places=2), served((2,), replicas=2, places=2)
    keys = plain.summary.keys() & scaled.summary.keys() - {"pools"}
    assert {key: scaled.summary[key] for key in keys if isinstance(plain.summary[key], float)} == pytest.approx(
        {key: plain.summary[key] for key in keys if isinstance(plain.summary[key], float)}, rel=1e-9)


@pytest.mark.parametrize(("model", "engine", "serve"), [
    ("llama-3.2-1b", "vllm-0.33", {"max_model_len": 4096}),
    ("llama-3.2-1b", "vllm-0.33", {"max_model_len": 4096, "eviction": "lfu"}),
    ("gemma-3-1b", "vllm-0.33", {"max_model_len": 4096}),
    ("llama-3.2-1b", "sglang-0.5.23", {"sglang": {"context_length": 4096}})])
def test_a_replica_that_starts_has_an_empty_cache(model, engine, serve):
    load = {**table((1, 1, 0, 0, 1), replicas=1, places=1, count=40), "model": model, "engine": engine, "serve": serve}
    load["workload"]["synthetic"]["sessions"] = {"turns": {"kind": "fixed", "value": 4},
                                                 "think": {"kind": "fixed", "value": "20 s"}}
    kept = {**load, "autoscaler": {"name": f"{__name__}:Steps", "sizes": [1]}}
    again, all_along = (simulate(Scenario.of(each)).summary["prefix_cache_hit_rate"] for each in (load, kept))
    assert again < all_along


def test_what_an_autoscaler_sees():
    Steps.seen.clear()
    served((1,), rate=4.0, count=40)
    seen = Steps.seen[1].pools["a"]
    assert seen.wanted == len(seen.ready) == 1 and not seen.starting
    assert seen.arrivals == 8 and seen.input_tokens == 200 and seen.output_tokens == 10
    assert 0 < seen.itl < seen.ttft < 0.1
    assert seen.ready[0].kv_tokens > 10_000 and seen.gpus == 1


@define
class Curious(Steps):
    """Asks for what engines report of their passes."""

    passes: ClassVar[bool] = True


def test_passes_are_seen_where_they_are_asked_for():
    Steps.seen.clear()
    served((1,), rate=400.0, count=3000, autoscaler={"name": f"{__name__}:Curious", "sizes": [1]},
           workload={"synthetic": {"count": 3000, "arrivals": {"process": "constant", "rate": 400.0},
                                   "prompt": {"kind": "fixed", "value": 200}, "output": {"kind": "fixed", "value": 50},
                                   "prefixes": {"groups": 1, "tokens": 1600}}})
    looks = [seen.pools["a"] for seen in Steps.seen if seen.pools["a"].ready[0].running]
    assert looks, "it is busy for some looks"
    for pool in looks:
        load, replica = pool.ready[0].load, pool.ready[0]
        assert 0 < load.wall < 1.0 and load.decode_requests + load.prefill_requests <= pool.limits.max_num_seqs
        assert load.prefill_tokens + load.decode_requests <= pool.limits.max_num_batched_tokens
        assert load.decode_kv <= replica.kv_tokens == pool.limits.max_kv_tokens
        assert load.queued_prefill_requests == replica.waiting and (not replica.waiting or load.queued_prefill_tokens)
        assert pool.hit_rate == pytest.approx(1600 / 1800, abs=0.05)
    assert pool.limits.context_length == 4096 and pool.gpu == "H200 SXM"


def test_hits_are_seen_of_requests_that_a_streamed_run_has_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_REQUESTS", 20)
    load = table((1,), rate=40.0, autoscaler={"name": f"{__name__}:Curious", "sizes": [1]})
    load["workload"]["synthetic"]["prefixes"] = {"groups": 4, "tokens": 1600}
    rates = []
    for played in (simulate, partial(stream, directory=tmp_path / "run")):
        Steps.seen.clear()
        played(Scenario.of(load))
        rates.append([seen.pools["a"].hit_rate for seen in Steps.seen])
    kept, streamed = rates
    assert streamed == kept and all(0.5 < rate < 1.0 for rate in kept[1:])


def test_a_node_comes_once_for_all_replicas_on_it_and_goes_when_it_was_idle():
    """The first node is full; the second comes at 61 s, is left at 120 s and at 240 s, and gone from 840 s on."""
    sizes = [[0.0, 8], [1.0, 10], [20.0, 11], [120.0, 8], [200.0, 9], [240.0, 8], [900.0, 9]]
    made = table(replicas=8, places=11, rate=0.05, count=50, nodes=2, startup={"name": "default", "node": "60 s"},
                 autoscaler={"name": "perfect", "interval": "1 s", "sizes": {"a": sizes}})
    fleet = Fleet.of(Scenario.of(made))
    work = sum(part.seconds for part in startup_of("default").parts(engine_load(fleet.pools[0].deployment)))
    engines = simulate(fleet.scenario).log.engines
    ready = [[moment for moment, state in built.life if state == "ready"] for built in engines[8:]]
    assert ready[0][0] == ready[1][0] == ready[2][0] and 61 < ready[2][0] < 120
    assert ready[0][1:] == pytest.approx([200 + work, 900 + 60 + work])


def test_a_node_that_comes_is_paid_with_all_its_gpus_until_it_goes(tmp_path):
    """Eight GPUs all along, and eight from 20 s to 10 min after 60 s; none is at hand for a third node."""
    made = table(replicas=8, places=17, rate=0.05, count=50, nodes=3, startup={"name": "default", "node": "10 s"},
                 autoscaler={"name": "perfect", "interval": "1 s", "sizes": {"a": [[0.0, 8], [20.0, 10], [60.0, 8]]}},
                 energy={"price_per_gpu_hour": 3600.0})
    result = simulate(Scenario.of(made))
    summary, ends = result.summary, [built.life[-1] for built in result.log.engines[8:10]]
    assert [state for _, state in ends] == ["gone", "gone"] and summary["duration"] > 700
    paid = 8 * (summary["duration"] + max(moment for moment, _ in ends) + 600 - 20)
    own = 17 * summary["duration"] - absent(result.log.engines, summary["duration"]).sum()
    assert summary["allocated_gpu_seconds"] == summary["gpu_dollars"] == pytest.approx(paid)
    assert summary["unused_gpu_seconds"] == pytest.approx(paid - own)
    assert summary["static_energy_joules"] == pytest.approx(paid * result.log.engines[0].static_watts)
    assert sum(result.kernels["seconds"].to_pylist()) == pytest.approx(paid)
    joules = power(result.history).integral(np.array([summary["duration"]]))[0]
    assert joules == pytest.approx(summary["energy_joules"])
    streamed = stream(Scenario.of(made), tmp_path / "run").summary
    for key in ("allocated_gpu_seconds", "unused_gpu_seconds", "gpu_dollars", "static_energy_joules", "mfu"):
        assert streamed[key] == pytest.approx(summary[key]), key
    for startup in ({"name": "default"}, {"name": "default", "node": "10 s", "mode": "sleep_1"}):
        there = simulate(Scenario.of({**made, "startup": startup})).summary
        assert "unused_gpu_seconds" not in there and there["allocated_gpu_seconds"] < summary["allocated_gpu_seconds"]


def test_a_prediction_of_ttft_refuses_nothing_while_no_replica_is_ready():
    result = served((0, 0, 1), replicas=0, rate=1.0, count=20, flow_control={
        "name": "predicted_ttft", "ttft_slo": "1 s"})
    assert result.summary["completed"] == 20


def test_kv_that_a_decode_engine_is_sent_is_no_hit():
    Steps.seen.clear()
    made = table((1,), rate=20.0, count=60, autoscaler={"name": f"{__name__}:Curious", "sizes": [1]})
    made["pools"] = {name: {"role": role, "replicas": 1, "max_replicas": 2}
                     for name, role in (("a", "prefill"), ("b", "decode"))}
    del made["router"]
    simulate(Scenario.of(made))
    rates = [pool.hit_rate for seen in Steps.seen for pool in seen.pools.values()]
    assert 0.0 in rates and {*rates} <= {0.0, None}


def test_an_idle_engine_reports_nothing_and_nobody_else_pays_for_it():
    Steps.seen.clear()
    served((1,), count=1, rate=1.0, autoscaler={"name": f"{__name__}:Curious", "sizes": [1]})
    served((1,), count=30)
    loads = [pool.ready[0].load for pool in (seen.pools["a"] for seen in Steps.seen)]
    assert None in loads and all(load is None or not load.wall or load.decode_requests for load in loads)


@pytest.mark.parametrize(("change", "says"), [
    ({"pools": {}}, "autoscaler: is about the replicas of pools"),
    ({"energy": {"sleep_after": "1 s"}}, "energy.sleep_after"),
    ({"pools": {"a": {"role": "both", "replicas": 0}}}, "replicas is 0"),
    ({"autoscaler": None, "pools": {"a": {"role": "both", "max_replicas": 3}}}, "and there is none; name one"),
    ({"pools": {"a": {"role": "both", "replicas": 4, "max_replicas": 3}}}, "max_replicas is 3"),
    ({"autoscaler": {"name": "hpa", "maxReplicas": 5, "metrics": [{"type": "Pods", "pods": {
        "metric": {"name": "vllm:num_requests_running"}, "target": {"type": "AverageValue", "averageValue": 5}}}]}},
     "may ask for 5; set it to 5")])
def test_what_cannot_be_scaled_is_refused(change, says):
    with pytest.raises(ConfigError, match=says):
        Fleet.of(Scenario.of({**table((1,)), **change}))


def shared(sizes, **pools):
    """Two pools on eight GPUs, of which each may have six."""
    made = table(sizes, count=100, rate=5.0)
    made["pools"] = {name: {"role": "both", "replicas": 2, "max_replicas": 6} for name in "ab"} | pools
    made["nodes"] = 1
    return made


def test_gpus_pass_from_one_pool_to_another():
    made = shared((2,))
    made["pools"]["a"]["autoscaler"] = {"name": f"{__name__}:Steps", "sizes": [2, 6, 1, 1, 1, 1, 6]}
    made["pools"]["b"]["autoscaler"] = {"name": f"{__name__}:Steps", "sizes": [2, 2, 6, 6, 6, 6, 1]}
    result = simulate(Scenario.of(made))
    assert result.summary["completed"] == 100
    fleet = Fleet.of(Scenario.of(made))
    gpus = {number: pool.gpus(place).start for pool in fleet.pools
            for number, place in zip(pool.numbers, pool.places, strict=True)}
    assert max(gpus.values()) == 7 and len({*gpus.values()}) == 8 and len(gpus) == 12
    there, changes = {}, sorted((moment, built.engine, state) for built in result.log.engines
                                for moment, state in built.life)
    for index, (moment, number, _) in enumerate(changes):
        there[number] = [now for since, now in result.log.engines[number].life if since <= moment][-1]
        if index + 1 == len(changes) or changes[index + 1][0] > moment:
            on = [gpus[engine] for engine, now in there.items() if now != "gone"]
            assert len(on) == len({*on})
    assert all(max(sum(state == "ready" for _, state in built.life) for built in result.log.engines[side]) >= 1
               for side in (slice(2, 6), slice(8, 12)))


def test_a_pool_that_cannot_have_its_maximum_alone_is_refused():
    with pytest.raises(DoesNotFit, match="b 9 x 1"):
        Fleet.of(Scenario.of(shared((2,), b={"role": "both", "replicas": 1, "max_replicas": 9})))


@pytest.mark.parametrize("router", ["sglang_cache_aware", "llm_d", {"name": "dynamo_kv", "use_kv_events": False},
                                    {"name": "session_affinity", "fallback": "sglang_cache_aware"}])
def test_routers_are_told_of_engines_that_have_gone(router, monkeypatch):
    told = []
    for kind in (PrefixIndex, PrefixTree):
        forget = kind.forget
        monkeypatch.setattr(kind, "forget", lambda self, number, forget=forget: (told.append(number),
                                                                                 forget(self, number)))
    result = served((3, 3, 3, 1), count=100, router=router)
    gone = {built.engine for built in result.log.engines for moment, state in built.life if state == "gone" and moment}
    assert gone and {*told} == gone
