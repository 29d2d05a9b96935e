"""Pools of engines: what each takes from the scenario, where its engines lie, and what they do together."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.report.result import Result
from ksim.simulation import simulate as simulation
from ksim.simulation.fleet import Fleet
from ksim.simulation.places import place
from ksim.simulation.scenario import Scenario
from ksim.simulation.simulate import independent, simulate
from tests.properties import examples

UNIFORM = {"synthetic": {"count": 12, "arrivals": {"process": "poisson", "rate": 100.0},
                         "prompt": {"kind": "uniform", "low": 1, "high": 200},
                         "output": {"kind": "uniform", "low": 1, "high": 20}}}


def scenario(pools=None, **changes):
    table = {"model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "workload": UNIFORM, **changes}
    table |= {"pools": pools} if pools else {}
    return Scenario.of({key: value for key, value in table.items() if value is not None})


def both(**changes):
    return {"role": "both", **changes}


def numbers(result: Result) -> tuple[object, ...]:
    """What a run's users see of it, but for its pools."""
    summary = {key: value for key, value in result.summary.items() if key != "pools"}
    tables = (result.requests, result.steps, result.kernels, result.attribution)
    return json.dumps(summary), [str(table.to_pydict()) for table in tables]


serves = st.fixed_dictionaries({}, optional={
    "data_parallel_size": st.integers(1, 3), "max_num_seqs": st.sampled_from([2, 64]),
    "tensor_parallel_size": st.sampled_from([1, 2]), "num_gpu_blocks_override": st.sampled_from([30, 500]),
    "async_scheduling": st.booleans()})
routers = st.sampled_from(["round_robin", "least_outstanding", "prefix_aware"])


@given(serve=serves, router=routers, seed=st.integers(0, 1000), model=st.sampled_from(["llama-3.2-1b", "gpt-oss-20b"]))
@examples(25)
def test_one_pool_gives_what_the_scenario_gives_without_it(serve, router, seed, model):
    with_pool = scenario({"all": both(serve=serve)}, router=router, seed=seed, model=model)
    assert numbers(simulate(with_pool)) == numbers(simulate(scenario(serve=serve, router=router, seed=seed,
                                                                     model=model)))


@given(replicas=st.integers(1, 4), router=routers, seed=st.integers(0, 1000))
@examples(15)
def test_replicas_of_a_dense_model_are_what_data_parallel_ranks_are(replicas, router, seed):
    as_pool = scenario({"all": both(replicas=replicas)}, router=router, seed=seed)
    as_ranks = scenario(serve={"data_parallel_size": replicas}, router=router, seed=seed)
    assert numbers(simulate(as_pool)) == numbers(simulate(as_ranks))


@given(pools=st.dictionaries(st.sampled_from("abc"), st.fixed_dictionaries({}, optional={
    "replicas": st.integers(1, 2), "gpu": st.sampled_from(["h100", "l4"]), "serve": serves}).map(
        lambda pool: {**pool, "role": "both"}), min_size=1), jobs=st.integers(2, 4), seed=st.integers(0, 1000))
@examples(25)
def test_the_result_is_the_same_for_any_number_of_processes(pools, jobs, seed):
    made = scenario(pools, seed=seed, nodes=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "run_in_processes", lambda work, items, jobs: map(work, items))
        apart = simulate(made, jobs=jobs)
    assert not apart.remarks if Fleet.of(made).engines > 1 else "there is one engine" in apart.remarks[0]
    whole = simulate(made)
    assert (numbers(apart), apart.scenario) == (numbers(whole), whole.scenario)


@given(sizes=st.lists(st.integers(1, 20), max_size=12), per_node=st.integers(1, 10))
@examples(200)
def test_engines_lie_in_order_and_none_that_fits_straddles_nodes(sizes, per_node):
    firsts, needed = place(sizes, per_node)
    ends = [first + size for first, size in zip(firsts, sizes, strict=True)]
    assert firsts[:1] in ([], [0]) and needed == max(ends, default=0)
    for first, end in zip(firsts, ends, strict=True):
        assert first // per_node == (end - 1) // per_node if end - first <= per_node else first % per_node == 0
    gaps = [after - end for end, after in zip(ends, firsts[1:], strict=False)]
    assert all(0 <= gap < per_node for gap in gaps)


def test_a_resolved_fleet_resolves_to_itself():
    made = scenario({"a": both(gpu="l4"), "b": both(serve={"max_num_seqs": 7}, replicas=2)}, nodes=2)
    resolved = Fleet.of(made).scenario
    assert Fleet.of(resolved).scenario == resolved
    again = Scenario.of(tomllib.loads(resolved.to_toml()))
    assert again == resolved and again.to_toml() == resolved.to_toml()
    assert resolved.pools["a"].serve["max_num_seqs"] == 256 and resolved.pools["b"].serve["max_num_seqs"] == 7


def test_a_pool_takes_from_the_scenario_what_it_does_not_set():
    made = scenario({"a": both(serve={"block_size": 32}), "b": both(gpu="h100", engine="vllm-0.22")},
                    serve={"max_num_seqs": 9, "block_size": 64})
    first, second = (pool.deployment for pool in Fleet.of(made).pools)
    assert (first.serve.block_size, first.serve.max_num_seqs, first.scenario.gpu) == (32, 9, "h200")
    assert (second.serve.block_size, second.scenario.gpu, second.version.name) == (64, "h100", "vLLM 0.22")
    changed = Fleet.of(made.with_values({"serve.max_num_seqs": 5, "pools.b.serve.max_num_seqs": 4,
                                         "pools.b.replicas": 2}))
    assert [pool.deployment.serve.max_num_seqs for pool in changed.pools] == [5, 4]
    assert [pool.replicas for pool in changed.pools] == [1, 2]


def test_options_of_a_plug_in_are_not_mixed_with_those_of_another():
    policy = {"name": "batch_wait", "seconds": 1}
    made = scenario({"a": both(serve={"scheduling_policy": {"name": "mine:Own", "depth": 2}})},
                    serve={"scheduling_policy": policy})
    assert made.of_pool("a").serve.scheduling_policy == Choice("mine:Own", {"depth": 2})


def test_pools_of_one_system_share_its_nodes_in_their_order():
    made = scenario({"a": both(serve={"tensor_parallel_size": 2}), "b": both(gpu="h100"),
                     "c": both(replicas=2, serve={"tensor_parallel_size": 8}),
                     "d": both(nodes=1, serve={"data_parallel_size": 2})}, nodes=3)
    fleet = Fleet.of(made)
    assert [[pool.gpus(where)[0] for where in pool.places] for pool in fleet.pools] == [[0], [24], [8, 16], [48, 49]]
    assert [list(pool.numbers) for pool in fleet.pools] == [[0], [1], [2, 3], [4, 5]]
    assert [(site.system.name.split()[1], site.system.nodes) for site in fleet.sites] == [
        ("H200", 3), ("H100", 3), ("H200", 1)]


def test_pools_that_need_too_many_gpus_are_refused():
    with pytest.raises(DoesNotFit, match=r"need 24 GPUs of HGX H200, .*\(a 1 x 4, b 2 x 8\), and there are 16; set"
                                         " nodes to 3 or more, or lower replicas"):
        Fleet.of(scenario({"a": both(serve={"tensor_parallel_size": 4}),
                           "b": both(replicas=2, serve={"tensor_parallel_size": 8})}, nodes=2))


def test_ranks_that_share_experts_stay_in_one_process():
    pools = {"a": both(replicas=2, serve={"data_parallel_size": 2}), "b": both()}
    assert [list(members) for members in independent(Fleet.of(scenario(pools, model="gpt-oss-20b")))] == [
        [0, 1], [2, 3], [4]]
    built = simulate(scenario(pools, model="gpt-oss-20b")).log.engines
    assert [(engine.group, engine.pool, engine.replica, engine.name) for engine in built] == [
        (0, "a", 0, "a0"), (0, "a", 0, "a1"), (2, "a", 1, "a2"), (2, "a", 1, "a3"), (-1, "b", 0, "b0")]


def test_energy_counts_each_pools_host():
    """Hosts draw the same watts, which more GPUs share in one pool than in the other."""
    energy = {"host_watts": 1000.0, "nic_watts": 10.0}
    fleet = Fleet.of(scenario({"a": both(replicas=3), "b": both(system="gb200-nvl72", gpu="gb200")}, energy=energy))
    beside = [pool.deployment.rates.beside for pool in fleet.pools]
    assert fleet.rates.beside == pytest.approx((3 * beside[0] + beside[1]) / 4) and beside[0] != beside[1]


def test_a_power_cap_is_checked_against_each_gpu():
    with pytest.raises(ConfigError, match=r"power.cap: no step of llama-3.2-1b keeps 130 W on H100"):
        simulate(scenario({"a": both(gpu="l40s"), "b": both(gpu="h100")}, gpu=None, power={"cap": 130}))


def test_the_summary_names_every_gpu():
    assert simulate(scenario({"a": both(), "b": both(gpu="l4"), "c": both()})).summary["gpu"] == "h200, l4"
