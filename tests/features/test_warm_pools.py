"""Warm pools: replicas that sleep on GPUs of their own, until a start takes one."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.events import Finished
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.results.scaling import replica_table
from ksim.scenario.scenario import Scenario
from ksim.scenario.startup import engine_load, startup_of
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import simulate
from ksim.specs.startup import seconds
from ksim.views.figures.scaling import ScaledMoments, scaling_chart
from tests.properties import examples

COUNT = 40


def table(sizes, warm=None, places=4, replicas=1, startup=None, **more):
    return {"model": "llama-3.1-8b", "gpu": "h200", "router": "round_robin", "serve": {"max_model_len": 4096},
            "startup": startup or {"name": "default", "mode": "process"},
            "autoscaler": {"name": "perfect", "interval": "1 s", "sizes": {"a": sizes}},
            "pools": {"a": {"role": "both", "replicas": replicas, "max_replicas": places,
                            **({"warm_pool": warm} if warm else {})}},
            "workload": {"synthetic": {"count": COUNT, "arrivals": {"process": "constant", "rate": 4.0},
                                       "prompt": {"kind": "fixed", "value": 200},
                                       "output": {"kind": "fixed", "value": 100}}}, **more}


def served(*args, **more):
    return simulate(Scenario.of(table(*args, **more)))


def states(result, replica):
    return [state for _, state in result.log.engines[replica].life]


GROWS = [[0.0, 1], [2.0, 2]]


@pytest.mark.parametrize("mode", ["sleep_1", "sleep_2", "snapshot"])
def test_a_start_takes_as_long_as_its_warm_replica_needs_to_wake(mode):
    result = served(GROWS, {"mode": mode}, startup={"name": "default", "image": "pull"}, places=2)
    assert states(result, 1) == ["warm", "starting", "ready"]
    (_, _), (began, _), (ready, _) = result.log.engines[1].life
    engine = engine_load(Fleet.of(Scenario.of(table(GROWS))).pools[0].deployment)
    assert ready - began == pytest.approx(seconds(startup_of(Choice("default", {"mode": mode})).parts(engine)))


def test_one_that_is_wanted_again_falls_asleep_before_it_wakes():
    result = served([[0.0, 1], [1.0, 2], [4.0, 1], [6.0, 2]], {"replicas": 1, "mode": "sleep_1"}, places=2)
    assert states(result, 1) == ["warm", "starting", "ready", "draining", "warm", "starting", "ready"]
    (slept, _), (wanted, _), (ready, _) = result.log.engines[1].life[-3:]
    engine = engine_load(Fleet.of(Scenario.of(table(GROWS))).pools[0].deployment)
    startup = startup_of(Choice("default", {"mode": "sleep_1"}))
    asleep = slept + seconds(startup.sleep(engine))
    assert asleep > wanted
    assert ready == pytest.approx(asleep + seconds(startup.parts(engine)))


def test_where_a_start_is_measured_as_a_whole_waking_is_not():
    result = served(GROWS, {"replicas": 1}, startup={"name": "default", "mode": "measured", "ready": "98 s"})
    (_, _), (began, _), (ready, _) = result.log.engines[1].life
    assert ready - began < 10


def test_warm_replicas_cost_as_others_do_and_serve_nobody():
    few, more = served([[0.0, 1]], startup={"name": "default"}), served([[0.0, 1]], {"replicas": 2})
    lasted = few.summary["duration"]
    assert more.summary["duration"] == lasted and states(more, 1) == states(more, 2) == ["warm"]
    for key, more_of_it in (("allocated_gpu_seconds", 2 * lasted), ("mean_gpus", 2), ("mean_replicas", 2)):
        assert more.summary[key] - few.summary[key] == pytest.approx(more_of_it), key
    assert more.summary["mean_warm_replicas"] == pytest.approx(2) and "mean_warm_replicas" not in few.summary
    watts = more.log.engines[1].static_watts
    assert more.summary["energy_joules"] - few.summary["energy_joules"] == pytest.approx(2 * watts * lasted)
    assert more.summary["p99_e2el_ms"] == few.summary["p99_e2el_ms"]


def test_tables_and_figures_have_a_state_more():
    result = served(GROWS, {"replicas": 1})
    rows = replica_table(result.log.engines, result.summary["duration"])
    assert "warm" in rows["state"].to_pylist()
    moments = ScaledMoments.of(result.history, result.limits, result.summary,
                               (rows, result.scaling))
    assert moments.sizes.replicas["a"]["warm"].peak == 1
    panel = next(panel for panel in scaling_chart(moments).panels if panel.title == "Replicas of a")
    assert "warm" in [mark.name for mark in panel.marks]


def test_one_that_goes_sleeps_with_an_empty_cache():
    result = served([[0.0, 2], [3.0, 1], [6.0, 2]], {"replicas": 1}, replicas=2, places=3,
                    startup={"name": "default", "mode": "sleep_1"})
    assert result.summary["completed"] == COUNT
    assert any(before == "draining" and after == "gone" for engine in range(3)
               for before, after in pairwise(states(result, engine))), "one sleeps already"
    result = served([[0.0, 2], [2.0, 3], [4.0, 1], [6.0, 2]], {"replicas": 1}, replicas=2, places=3)
    assert any("warm" in pair and pair[0] in ("ready", "draining") for engine in range(3)
               for pair in pairwise(states(result, engine)))
    assert result.summary["completed"] == COUNT


@pytest.mark.parametrize(("change", "says"), [
    ({"replicas": 4}, "max_replicas is 4, and there are 1 replicas at the start and 4 in the warm pool"),
    ({"mode": "process"}, "mode"), ({"replicas": 0}, "replicas")])
def test_what_cannot_be_warm_is_refused(change, says):
    with pytest.raises(ConfigError, match=says):
        Scenario.of(table(GROWS, change))
    made = table(GROWS, {"replicas": 1})
    del made["autoscaler"]
    with pytest.raises(ConfigError, match="and there is none"):
        Scenario.of(made)


@examples(60)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.lists(st.integers(0, 3), min_size=1, max_size=5),
       st.integers(0, 1), st.integers(0, 1), st.sampled_from(["0 s", "1 s", None]), st.booleans())
def test_no_two_replicas_hold_a_gpu_and_each_request_ends(first, second, warm_a, warm_b, grace, drained):
    sizes = {name: [[float(number), size] for number, size in enumerate((*each, 1))]
             for name, each in (("a", first), ("b", second))}
    made = table([], nodes=1)
    made["autoscaler"] = {"name": "perfect", "interval": "1 s", "sizes": sizes}
    made["serve"]["tensor_parallel_size"] = 2
    made["startup"]["mode"] = "sleep_2"
    made["pools"] = {name: {"role": "both", "replicas": 1, "max_replicas": 3, "lifecycle": {} if grace is None else {
        "termination_grace_period": grace, "migration_limit": 99},
        **({"warm_pool": {"replicas": warm}} if warm else {})} for name, warm in (("a", warm_a), ("b", warm_b))}
    made |= {"drains": [{"at": "2 s", "nodes": [0], "for": "3 s"}]} if drained else {}
    result = simulate(Scenario.of(made))
    assert len(list(result.log.of(Finished))) == COUNT
    fleet = Fleet.of(Scenario.of(made))
    gpus = {number: set(pool.gpus(place)) for pool in fleet.pools
            for number, place in zip(pool.numbers, pool.places, strict=True)}
    changes = sorted((moment, built.engine) for built in result.log.engines for moment, _ in built.life)
    for moment, _ in changes:
        there = [gpus[built.engine] for built in result.log.engines
                 if [state for since, state in built.life if since <= moment][-1] != "gone"]
        assert sum(map(len, there)) == len(set().union(*there))
    held = sum(2 * (min(end, result.summary["duration"]) - min(since, result.summary["duration"]))
               for built in result.log.engines for (since, state), (end, _) in pairwise((*built.life, (1e9, ""))) if
               state != "gone")
    assert result.summary["allocated_gpu_seconds"] == pytest.approx(held)


def test_a_warm_replica_gives_its_gpus_to_a_pool_that_needs_them():
    made = table([], nodes=1)
    made["autoscaler"] = {"name": "perfect", "interval": "1 s", "sizes": {"a": [[0.0, 1]], "b": [[0.0, 0], [2.0, 2]]}}
    made["serve"]["tensor_parallel_size"] = 2
    made["startup"]["mode"] = "sleep_2"
    made["pools"] = {"a": {"role": "both", "replicas": 1, "max_replicas": 4, "warm_pool": {"replicas": 3}},
                     "b": {"role": "both", "replicas": 0, "max_replicas": 3}}
    result = simulate(Scenario.of(made))
    assert [states(result, engine) for engine in range(4)] == [["ready"], ["warm", "gone"], ["warm", "gone"], ["warm"]]
    assert [states(result, engine)[:2] for engine in range(4, 7)] == [["gone"], ["gone", "starting"],
                                                                      ["gone", "starting"]]
