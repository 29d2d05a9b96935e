"""Autoscalers compared, and the search for the perfect one."""

import tomllib
from itertools import pairwise, product

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.errors import ConfigError, KsimError
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.study.autoscalers import _least, autoscalers
from ksim.study.perfect import Search
from ksim.study.workers import InProcess
from tests.study.fleets import SCHEDULE, table


@pytest.fixture(scope="module")
def found():
    idle = {"name": "perfect", "sizes": {"a": [[0.0, 1]]}, "interval": "1 s"}
    return autoscalers(Scenario.of(table()), [idle], attainment=0.95, slots=6, trials=10, jobs=1)


def test_the_perfect_one_keeps_the_slo_and_costs_no_more_than_others_that_do(found):
    keeping = [run for run in found.runs if found.keeps(run)]
    assert found.perfect.name == "perfect" and found.perfect in keeping
    assert all(found.regret(run) >= 0 for run in keeping)
    assert 0 < found.perfect.kept.cost < 3 * 3.0 * 24 / 3600


def test_its_scenario_runs_to_the_same_cost(found):
    again = simulate(Scenario.of(tomllib.loads(found.perfect.scenario.to_toml())))
    assert again.summary["gpu_dollars"] == pytest.approx(found.perfect.kept.cost)
    assert again.summary["slo_attainment"] == pytest.approx(found.perfect.kept.share)


def test_the_table_and_the_figure_show_all(found):
    assert len(found.shown.rows) == len(found.runs) == len(found.records()) == 3
    assert "regret, $" in found.shown.names and "keep" in found.notes[0]
    assert found.records()[0]["sizes"]["a"][0][0] == 0.0
    assert len(found.plot().panels) == 2


HPA = {"name": "hpa", "maxReplicas": 3, "metrics": [{"type": "Pods", "pods": {
    "metric": {"name": "vllm:num_requests_running"}, "target": {"type": "AverageValue", "averageValue": 8}}}]}
TARGET = "hpa.metrics.0.pods.target.averageValue"


def tried(over, *others):
    return autoscalers(Scenario.of(table()), others, attainment=0.95, slots=1, trials=0, jobs=1, over=over)


@pytest.fixture(scope="module")
def varied():
    return tried([f"{TARGET}=2,8", "hpa.minReplicas=1,2,4"], HPA)


def test_each_combination_of_settings_is_an_autoscaler(varied):
    names = {f"hpa:averageValue={target}:minReplicas={least}" for target in (2, 8) for least in (1, 2)}
    assert names < {run.name for run in varied.runs}
    for run in varied.runs:
        choice = run.scenario.autoscaler_of("a")
        if run.name in names:
            set_to = choice.options["metrics"][0]["pods"]["target"]["averageValue"], choice.options["minReplicas"]
            assert run.settings == {TARGET: set_to[0], "hpa.minReplicas": set_to[1]}
    assert HPA["metrics"][0]["pods"]["target"]["averageValue"] == 8 and "minReplicas" not in HPA
    assert [record["settings"] for record in varied.records()] == [run.settings for run in varied.runs]


def test_the_best_settings_are_told_and_those_that_cannot_be(varied):
    assert varied.best is min(filter(varied.keeps, varied.runs[1:]), key=lambda run: run.kept.cost)
    assert varied.notes[-1].startswith(f"{varied.best.name} is the cheapest that keeps the SLO, of 5 autoscalers: $")
    left = [note for note in varied.notes if "is left out" in note]
    assert len(left) == 2 and "minReplicas" in left[0] and len(varied.runs) == 6
    none = evolve(varied, share=1.01)
    assert none.best is None and "none of 5 autoscalers keeps the SLO; " in none.notes[-1]


def test_settings_cost_what_they_cost_alone(varied):
    alone = tried((), {**HPA, "minReplicas": 2})
    costs = [next(run.kept.cost for run in found.runs if run.name == name)
             for found, name in ((varied, "hpa:averageValue=8:minReplicas=2"), (alone, "hpa"))]
    assert costs[0] == costs[1] and not alone.varied and "settings" not in alone.records()[0]


@pytest.mark.parametrize(("over", "says"), [
    (["wva.scaleUpThreshold=0.8,0.9"], "wva.scaleUpThreshold begins with the name of no autoscaler.*: perfect, hpa"),
    (["hpa.minReplicas=1:3"], "expected values with commas between, not the range 1:3"),
    (["hpa.minReplica=1,2"], "hpa: minReplica: unknown key"),
    (["hpa.metrics.1.pods=1,2"], "hpa.metrics.1.pods: 1 is no place in a list of 1"),
    (["hpa.minReplicas=1,2", "hpa.minReplicas=3"], "comes twice"),
    ({"hpa.minReplicas": list(range(300))}, "makes 301 autoscalers, .* at most 256 are compared")])
def test_settings_that_cannot_be_tried_are_refused(over, says):
    with pytest.raises(ConfigError, match=says):
        tried(over, HPA)


def test_it_is_no_dearer_than_one_that_no_trial_would_find():
    """With one slot it has one size all along; another that keeps the SLO with less is what it does then."""
    found = autoscalers(Scenario.of(table()), attainment=0.5, slots=1, trials=0, jobs=1)
    lean = {"name": "perfect", "sizes": {"a": [[1.0, 1]]}, "interval": "1 s"}
    beside = autoscalers(Scenario.of(table(pools={"a": {"role": "both", "replicas": 1, "max_replicas": 3}})), [lean],
                         attainment=0.5, slots=1, trials=0, jobs=1)
    assert beside.perfect.kept.cost <= min(run.kept.cost for run in beside.runs if beside.keeps(run))
    assert found.perfect.kept.share >= 0.5


def search(slots=4, lead=1.0):
    made = Search(Scenario.of(table()), 0.9, slots, 0, {"a": 2.0}, {"a": lead}, InProcess(), told=lambda: None)
    made.length = 3.0
    return made


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=3, max_size=3),
       st.floats(0, 10), st.floats(0, 20))
def test_the_sizes_of_a_price_are_the_cheapest_of_all(misses, price, lead):
    made, levels, misses = search(lead=lead), np.array([0, 1, 2]), np.array(misses, float)
    lead = min(lead, made.length * made.slots)

    def cost(sizes):
        ups = sum(max(0, after - before) for before, after in pairwise(sizes))
        return 2.0 * (made.length * sum(sizes) + lead * ups
                      + price * sum(misses[size, slot] for slot, size in enumerate(sizes)))

    best = min(cost(sizes) for sizes in product(range(3), repeat=4) if sizes[-1])
    assert cost(made._cheapest("a", levels, misses, price)) == pytest.approx(best)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.floats(0, 10))
def test_replicas_are_asked_for_as_long_before_as_they_take_to_start(sizes, lead):
    made, grain = search(len(sizes)), 0.5
    asked = made._asked(sizes, lead, grain)
    assert asked[0][0] == 0.0 and all(before[0] < after[0] for before, after in pairwise(asked))
    for slot, size in enumerate(sizes):
        begin = slot * made.length
        wanted = [[replicas for time, replicas in asked if time <= moment][-1]
                  for moment in (max(0.0, begin - lead), begin)]
        assert all(each >= size for each in wanted)


@pytest.mark.parametrize(("change", "says"), [
    ({"slo": {}}, "has no target"), ({"autoscaler": None, "pools": {"a": {"role": "both"}}}, "is not set")])
def test_what_cannot_be_compared_is_refused(change, says):
    with pytest.raises(ConfigError, match=says):
        autoscalers(Scenario.of(table(**change)), jobs=1)


def test_an_slo_that_all_replicas_miss_is_refused():
    with pytest.raises(KsimError, match="with all replicas all the time"):
        autoscalers(Scenario.of(table(slo={"ttft": "1 ms"})), slots=1, jobs=1)


@pytest.mark.parametrize(("sizes", "says"), [({}, "sizes is empty"), ({"a": [[1.0, 2], [0.0, 1]]}, "order of time"),
                                             ({"a": [[0.0, 1.5]]}, "no list of")])
def test_schedules_that_are_none_are_refused(sizes, says):
    with pytest.raises(ConfigError, match=says):
        simulate(Scenario.of(table(autoscaler={"name": "perfect", "sizes": sizes})))


@pytest.mark.parametrize(("own", "least"), [({"name": "wva"}, 1), (SCHEDULE, 1), ({
    "name": "keda", "minReplicaCount": 0, "triggers": [{"type": "prometheus", "metadata": {
        "query": "sum(vllm:num_requests_waiting)", "threshold": "1"}}]}, 0)])
def test_the_perfect_one_has_none_only_where_a_rival_may(own, least):
    assert _least([Scenario.of(table(autoscaler=own))]) == least
