"""Copies of a scenario: as many engines as are asked for, on as few nodes as hold them."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.errors import DoesNotFit, KsimError, UnknownName
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.study.capacity.judge import set_ups
from ksim.study.capacity.traffic import gpus_of, replicated
from ksim.study.grid import SettingValues
from tests.properties import examples

LOAD = {"synthetic": {"count": 8, "arrivals": {"process": "poisson", "rate": 4.0},
                      "prompt": {"kind": "fixed", "value": 64}, "output": {"kind": "fixed", "value": 8}}}
ALONE = {"model": "llama-3.1-8b", "gpu": "h100", "serve": {"max_model_len": 512}, "workload": LOAD}
SPLIT = {**ALONE, "pools": {"prefill": {"role": "prefill", "serve": {"tensor_parallel_size": 2}},
                            "decode": {"role": "decode", "replicas": 3}}}


@examples(30)
@given(tensor=st.sampled_from([1, 2, 4, 8]), data=st.integers(1, 3), count=st.integers(1, 20))
def test_copies_have_so_many_times_the_gpus_on_as_few_nodes_as_hold_them(tensor, data, count):
    serve = {"max_model_len": 512, "tensor_parallel_size": tensor, "data_parallel_size": data}
    one = Scenario.of({**ALONE, "nodes": 3, "serve": serve})
    many = replicated(one, count)
    fleet = Fleet.of(many)
    assert gpus_of(fleet) == count * gpus_of(Fleet.of(one)) and fleet.engines == count * data
    if many.nodes > 3:
        with pytest.raises(DoesNotFit):
            Fleet.of(evolve(many, nodes=many.nodes - 1))


@examples(15)
@given(count=st.integers(1, 12), own=st.booleans())
def test_copies_of_a_fleet_have_so_many_times_each_pool(count, own):
    one = Scenario.of(SPLIT).with_values({"pools.decode.nodes": 1} if own else {})
    many = replicated(one, count)
    fleet = Fleet.of(many)
    assert {pool.name: pool.replicas for pool in fleet.pools} == {"prefill": count, "decode": 3 * count}
    assert gpus_of(fleet) == 5 * count


def test_one_copy_is_the_scenario_itself():
    one = Scenario.of(ALONE)
    assert replicated(one, 1) is one


def test_a_set_up_for_each_combination_with_the_reason_of_those_that_do_not_fit():
    made = set_ups(Scenario.of(ALONE), [SettingValues("serve.tensor_parallel_size", (1, 3)),
                                        SettingValues("gpu", ("h100", "h200"))])
    assert [(setup.name, setup.gpus) for setup in made] == [
        ("TP1 on h100", 1), ("TP1 on h200", 1), ("TP3 on h100", 0), ("TP3 on h200", 0)]
    assert [bool(setup.problem) for setup in made] == [False, False, True, True]
    assert "3 does not divide" in made[2].problem


def test_without_axes_the_scenario_is_the_only_set_up():
    assert [setup.name for setup in set_ups(Scenario.of(ALONE), [])] == ["TP1 on h100"]
    assert [(setup.name, setup.gpus) for setup in set_ups(Scenario.of(SPLIT), [])] == [("the fleet", 5)]


def test_settings_of_pools_are_named_with_their_pool():
    made = set_ups(Scenario.of(SPLIT), [SettingValues("pools.decode.replicas", (1, 2)),
                                        SettingValues("serve.max_num_seqs", (64,))])
    assert [(setup.name, setup.gpus) for setup in made] == [
        ("decode.replicas=1, max_num_seqs 64", 3), ("decode.replicas=2, max_num_seqs 64", 4)]


@pytest.mark.parametrize(("key", "values", "error", "problem"), [
    ("serve.tensor_paralel_size", (1, 2), KsimError, "did you mean 'tensor_parallel_size'"),
    ("gpu", ("h100", "h2000"), UnknownName, "did you mean"),
    ("model", ("llama-3.1-70b",), KsimError, "^(?!none of).*GiB"),
    ("serve.tensor_parallel_size", ("two",), KsimError, "expected a whole number"),
])
def test_what_cannot_be_meant_is_refused(key, values, error, problem):
    with pytest.raises(error, match=problem):
        set_ups(Scenario.of(ALONE), [SettingValues(key, values)])
