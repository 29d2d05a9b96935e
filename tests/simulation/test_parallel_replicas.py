"""Replicas in processes of their own: the same results as in one, or a remark that says why there is but one."""

import json

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import Scenario
from ksim.simulation import simulate as simulation
from ksim.simulation.simulate import shares, simulate
from ksim.views.result import Result
from tests.properties import examples


def fixed(value: int) -> dict[str, object]:
    return {"kind": "fixed", "value": value}


def uniform(low: int, high: int) -> dict[str, object]:
    return {"kind": "uniform", "low": low, "high": high}


BURST = {"process": "burst"}


def scenario(serve=None, load=None, **more) -> Scenario:
    synthetic = {"count": 12, "arrivals": BURST, "prompt": uniform(1, 200), "output": uniform(1, 20), **(load or {})}
    return Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline",
                        "serve": {"data_parallel_size": 3, "max_model_len": 160, **(serve or {})},
                        "workload": {"synthetic": synthetic, **more.pop("workload", {})}, **more})


def content(result: Result) -> tuple[object, ...]:
    """All that is written down of a run."""
    tables = (result.requests, result.steps, result.kernels, result.attribution)
    # As text: nan is no equal of itself.
    return json.dumps(result.summary), result.scenario, [str(table.to_pydict()) for table in tables]


@pytest.fixture
def at_hand(monkeypatch):
    """Do what processes are for in this one, which starts sooner."""
    monkeypatch.setattr(simulation, "run_in_processes", lambda work, items, jobs: map(work, items))


def test_processes_of_their_own_give_the_same_result():
    ended = []
    whole, apart = simulate(scenario()), simulate(scenario(), lambda: ended.append(1), jobs=2)
    assert content(apart) == content(whole)
    assert whole.summary["failed"] > 0 and whole.summary["completed"] > 0
    assert len(ended) == 12 and apart.remarks == whole.remarks


#: Some are all alike, so that replicas do the same at the same time; some are too long for any; some share prefixes.
loads = st.fixed_dictionaries({
    "arrivals": st.sampled_from([BURST, {"process": "poisson", "rate": 50}, {"process": "poisson", "rate": 5000}]),
    "prompt": st.sampled_from([fixed(40), uniform(1, 200)]), "output": st.sampled_from([fixed(9), uniform(1, 30)]),
    "count": st.integers(1, 15),
}, optional={"prefixes": st.just({"groups": 2, "tokens": 32})})
serves = st.fixed_dictionaries({
    "data_parallel_size": st.integers(2, 4), "max_num_seqs": st.sampled_from([2, 64]),
    "num_gpu_blocks_override": st.sampled_from([12, 500]), "async_scheduling": st.booleans()})


@given(serve=serves, load=loads, jobs=st.integers(2, 5), seed=st.integers(0, 1000))
@examples(40)
def test_the_result_is_the_same_for_any_number_of_processes(serve, load, jobs, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "run_in_processes", lambda work, items, jobs: map(work, items))
        made = scenario(serve, load, seed=seed)
        apart, whole = simulate(made, jobs=jobs), simulate(made)
    assert apart.remarks == whole.remarks  # it did not run in one process
    assert content(apart) == content(whole)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"serve": {"data_parallel_size": 1}}, "data_parallel_size is 1"),
    ({"workload": {"max_concurrency": 2}}, "max_concurrency"),
    ({"load": {"sessions": {"turns": fixed(2)}}}, "turns of a session"),
    ({"router": "least_outstanding"}, "router least_outstanding goes by books of the replicas"),
    ({"router": "prefix_aware"}, "router prefix_aware goes by books, kv_events of the replicas"),
    ({"flow_control": "queue_limit"}, "flow_control queue_limit looks at all replicas"),
    ({"model": "gpt-oss-20b"}, "experts"),
])
def test_coupled_replicas_run_in_one_process_and_it_is_said_why(at_hand, changes, reason):
    coupled = scenario(**{key: value for key, value in changes.items() if key != "model"})
    coupled = coupled.with_values({key: value for key, value in changes.items() if key == "model"})
    apart = simulate(coupled, jobs=2)
    assert apart.remarks[0].startswith("ran in one process, not in 2: ") and reason in apart.remarks[0]
    assert content(apart) == content(simulate(coupled))


@define
class Peeping:
    """Says that it does not look, and does."""

    signals = ()

    def choose(self, request, engines, now):
        return min(engines, key=lambda engine: engine.outstanding)


def test_a_router_that_looks_although_it_says_otherwise_is_found_out(at_hand):
    with pytest.raises(ConfigError, match="reads outstanding of engine 0, which is of the signal books"):
        simulate(scenario(router="tests.simulation.test_parallel_replicas:Peeping"), jobs=2)


def test_an_error_in_one_process_is_an_error_of_the_run():
    with pytest.raises(ConfigError, match="reads outstanding of engine"):
        simulate(scenario(router="tests.simulation.test_parallel_replicas:Peeping"), jobs=2)


@given(replicas=st.integers(1, 20), jobs=st.integers(1, 20))
def test_every_replica_is_in_exactly_one_share(replicas, jobs):
    alone = [range(number, number + 1) for number in range(replicas)]
    assert sorted(number for share in shares(alone, jobs) for number in share) == list(range(replicas))
