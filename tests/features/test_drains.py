"""Nodes that are drained while they serve, and the budgets of the pools on them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.autoscaling.kubernetes import DisruptionBudget
from ksim.flow.events import Failed, Finished, Rejected
from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.specs.pools import DisruptionBudgetSettings
from tests.properties import examples

COUNT, OUTPUT = 12, 300


def table(drains, places=3, replicas=2, nodes=3, budget=None, count=COUNT, startup="sleep_1", **more):
    """Replicas that fill a node each."""
    ends = {**more.pop("ends", {}), **({"disruption_budget": budget} if budget else {})}
    pools = {"a": {"role": "both", "replicas": replicas, **({"max_replicas": places} if places > replicas else {})}}
    return {"model": "llama-3.1-8b", "gpu": "h200", "nodes": nodes, "router": "round_robin", "lifecycle": ends,
            "serve": {"max_model_len": 4096, "tensor_parallel_size": 8}, "pools": pools, "drains": drains,
            "startup": {"name": "default", "mode": startup},
            "workload": {"synthetic": {"count": count, "arrivals": {"process": "constant", "rate": 4.0},
                                       "prompt": {"kind": "fixed", "value": 200},
                                       "output": {"kind": "fixed", "value": OUTPUT}}}, **more}


def served(*args, **more):
    return simulate(Scenario.of(table(*args, **more)))


def life(result, replica):
    return [(round(moment, 3), state) for moment, state in result.log.engines[replica].life]


def states(result, replica):
    return [state for _, state in life(result, replica)]


def ready(result):
    """How many replicas were ready, from when on."""
    changes = sorted((moment, engine, state) for engine, built in enumerate(result.log.engines)
                     for moment, state in built.life)
    now, found = {}, {}
    for moment, engine, state in changes:
        now[engine] = state
        found[moment] = sum(each == "ready" for each in now.values())
    return found


def test_what_is_on_a_drained_node_goes_and_another_starts_elsewhere():
    result = served([{"at": "1 s", "nodes": [0]}])
    assert states(result, 0)[:2] == ["ready", "draining"] and states(result, 0)[-1] == "gone"
    assert life(result, 2)[:2] == [(0.0, "gone"), (1.0, "starting")] and states(result, 2)[2] == "ready"
    assert result.summary["completed"] == COUNT


def test_without_a_place_elsewhere_it_starts_when_its_node_is_back():
    result = served([{"at": "1 s", "nodes": [0], "for": "5 s"}], places=2, nodes=2, count=40)
    assert (6.0, "starting") in life(result, 0) and states(result, 0)[-1] == "ready"
    assert result.summary["completed"] == 40


def test_a_fleet_that_is_drained_whole_serves_again_when_it_is_back():
    drains = [{"at": "1 s", "nodes": [0, 1], "for": "5 s"}, {"at": "7 s", "nodes": [0], "for": "1 s"}]
    result = served(drains, places=2, nodes=2, count=20, ends={"termination_grace_period": "0 s",
                                                               "migration_limit": 9})
    assert result.summary["completed"] == 20 and min(ready(result).values()) == 0


def test_a_starting_replica_is_evicted_too():
    result = served([{"at": "1 s", "nodes": [0]}, {"at": "2 s", "nodes": [2], "for": "8 s"}],
                    startup="process", count=40)
    assert life(result, 2)[1:3] == [(1.0, "starting"), (2.0, "gone")] and (10.0, "starting") in life(result, 2)


def test_a_budget_has_evictions_wait_for_what_replaces_them():
    drain = [{"at": "1 s", "nodes": [0, 1], "for": "900 s"}]
    result = served(drain, places=4, nodes=4, budget={"min_available": 2}, count=30)
    assert states(result, 0) == states(result, 1) == ["ready"], "two are ready, and two are needed"
    result = served(drain, places=4, nodes=4, budget={"max_unavailable": 1}, count=30)
    assert states(result, 0)[1] == states(result, 1)[1] == "draining"
    assert life(result, 0)[1][0] == 1.0 and life(result, 1)[1][0] % 5 == pytest.approx(1.0)
    assert min(ready(result).values()) == 1
    result = served(drain, places=4, nodes=4)
    assert life(result, 0)[1] == life(result, 1)[1] == (1.0, "draining")


def test_a_budget_that_allows_no_eviction_is_named():
    result = served([{"at": "1 s", "nodes": [0]}], budget={"min_available": "100%"})
    assert states(result, 0) == ["ready"] and any("never allows an eviction" in each for each in result.remarks)
    assert not any("eviction" in each for each in served([{"at": "1 s", "nodes": [0]}],
                                                         budget={"min_available": 1}).remarks)


def test_replicas_of_all_pools_on_a_node_go_and_nodes_are_counted_through_all_systems():
    made = table([{"at": "1 s", "nodes": [1]}], places=2)
    made["serve"]["tensor_parallel_size"] = 4
    made["nodes"] = 1
    made["pools"] = {"a": {"role": "both", "replicas": 1, "max_replicas": 2},
                     "b": {"role": "both", "replicas": 1, "nodes": 2, "max_replicas": 4}}
    result = simulate(Scenario.of(made))
    assert states(result, 0) == ["ready"] and states(result, 2)[:2] == ["ready", "draining"]
    assert states(result, 3) == ["gone"] and states(result, 4)[:2] == ["gone", "starting"]


@pytest.mark.parametrize(("ready", "healthy", "wanted", "allowed"), [
    (True, 2, 2, False), (True, 3, 2, True), (False, 2, 2, True), (False, 1, 2, False), (False, 0, 0, False),
    (False, 1, 0, True)])
def test_a_pod_that_is_not_ready_may_go_where_enough_others_are(ready, healthy, wanted, allowed):
    assert DisruptionBudget(4, DisruptionBudgetSettings(min_available=wanted)).allows(healthy, ready) is allowed


@pytest.mark.parametrize(("change", "says"), [
    ({"drains": [{"at": "1 s", "nodes": [3]}]}, r"drains\[0\].nodes: has 3, and the fleet has 3 nodes"),
    ({"drains": [{"at": "1 s", "nodes": [0]}, {"at": "9 s", "nodes": [0]}]}, r"drains\[1\].nodes: has node 0, which"),
    ({"drains": [{"at": "1 s", "nodes": [0, 0]}]}, "has a node twice"),
    ({"drains": [{"at": "1 s", "nodes": []}]}, "drains"),
    ({"drains": [{"at": "1 s", "nodes": [0, 1, 2]}]}, "leaves pool a no node for good"),
    ({"drains": [{"nodes": [0]}]}, "at"), ({"pools": {}}, "drains: is about the replicas of pools"),
    ({"lifecycle": {"disruption_budget": {}}}, "needs one of min_available and max_unavailable"),
    ({"lifecycle": {"disruption_budget": {"min_available": "x"}}}, "neither a number of pods nor a percentage")])
def test_what_cannot_be_drained_is_refused(change, says):
    with pytest.raises(ConfigError, match=says):
        simulate(Scenario.of({**table([{"at": "1 s", "nodes": [0]}]), **change}))


def test_a_budget_alone_changes_nothing():
    made = table([], places=2, budget={"min_available": 1})
    alone, plain = (simulate(Scenario.of({**made, "lifecycle": each})) for each in (made["lifecycle"], {}))
    assert alone.summary == plain.summary and not alone.log.engines[0].life


DRAINS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 30)), min_size=1, max_size=3,
                  unique_by=lambda drain: drain[0])
BUDGETS = st.none() | st.fixed_dictionaries({"min_available": st.sampled_from([0, 1, 2, "50%", "100%"])}) | (
    st.fixed_dictionaries({"max_unavailable": st.sampled_from([0, 1, "25%", "50%"])}))


@examples(60)
@given(DRAINS, BUDGETS, st.sampled_from(["0 s", "1 s", None]), st.integers(0, 2), st.integers(1, 3), st.booleans())
def test_each_request_ends_once_and_evictions_keep_the_budget(drains, budget, grace, limit, replicas, scaled):
    drained = [{"at": f"{at} s", "nodes": [node], "for": f"{lasts} s"} for node, at, lasts in drains]
    ends = {} if grace is None else {"termination_grace_period": grace, "migration_limit": limit}
    sizes = {"name": "perfect", "interval": "1 s", "sizes": {"a": [[0.0, replicas]]}}
    result = served(drained, places=4, nodes=4, replicas=replicas, budget=budget, ends=ends,
                    **({"autoscaler": sizes} if scaled else {}))
    ended = [one.request_id for kind in (Finished, Failed, Rejected) for one in result.log.of(kind)]
    assert sorted(ended) == [*range(COUNT)]
    if grace is None or limit:
        assert len(list(result.log.of(Finished))) + len(list(result.log.of(Failed))) == COUNT
    if budget:
        least = DisruptionBudget(replicas, DisruptionBudgetSettings(**budget)).desired_healthy
        assert all(after >= min(before, least) for before, after in pairwise(ready(result).values()))
    cordoned = [(node, at, at + lasts) for node, at, lasts in drains]
    for node, begin, end in cordoned:  # a replica fills a node, and has its number
        assert not any(state == "starting" and begin <= moment < end
                       for moment, state in result.log.engines[node].life)


def test_nodes_that_are_drained_together_do_not_get_each_others_replicas():
    result = served([{"at": "0 s", "nodes": [0], "for": "1 s"}, {"at": "0 s", "nodes": [1], "for": "1 s"}], replicas=1,
                    places=4, nodes=4)
    assert states(result, 1) == ["gone"] and states(result, 2)[:2] == ["gone", "starting"]
