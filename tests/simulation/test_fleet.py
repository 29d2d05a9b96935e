"""Pools of engines: what each takes from the scenario, where its engines lie, and what they do together."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from ksim.foundation import catalog
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.scenario.scenario import Scenario, alike, beside, merged
from ksim.scenario.sizing import pack
from ksim.simulation import simulate as simulation
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import independent, simulate, stream
from ksim.views.result import Result
from tests.properties import examples

ROOT = Path(__file__).parents[2]
UNIFORM = {"synthetic": {"count": 12, "arrivals": {"process": "poisson", "rate": 100.0},
                         "prompt": {"kind": "uniform", "low": 1, "high": 200},
                         "output": {"kind": "uniform", "low": 1, "high": 20}}}


def scenario(pools=None, **changes):
    table = {"model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "workload": UNIFORM, **changes}
    table |= {"pools": pools} if pools else {}
    return Scenario.of({key: value for key, value in table.items() if value is not None})


def both(**changes):
    return {"role": "both", **changes}


def numbers(result: Result, like: Result | None = None) -> tuple[object, ...]:
    """What a run's users see of it: all, or what they also see of the run that it is *like*."""
    like = like or result
    tables = [(getattr(result, name), getattr(like, name)) for name in ("requests", "steps", "kernels")]
    return (json.dumps({key: result.summary[key] for key in like.summary}),
            [str(table.select(other.column_names).to_pydict()) for table, other in tables])


def check_alike(pooled: Result, plain: Result) -> None:
    """Whether a run with pools tells what the *plain* one does; phases that only fleets have add up to nothing."""
    assert numbers(pooled, plain) == numbers(plain)
    for name in plain.attribution.column_names:
        seconds, others = (np.array(run.attribution[name].to_pylist(), dtype=float) for run in (pooled, plain))
        np.testing.assert_allclose(seconds, others, rtol=1e-9, atol=1e-12)


serves = st.fixed_dictionaries({}, optional={
    "data_parallel_size": st.integers(1, 3), "max_num_seqs": st.sampled_from([2, 64]),
    "tensor_parallel_size": st.sampled_from([1, 2]), "num_gpu_blocks_override": st.sampled_from([30, 500]),
    "async_scheduling": st.booleans()})
routers = st.sampled_from(["round_robin", "least_outstanding", "prefix_aware"])


@given(serve=serves, router=routers, seed=st.integers(0, 1000), model=st.sampled_from(["llama-3.2-1b", "gpt-oss-20b"]))
@examples(25)
def test_one_pool_gives_what_the_scenario_gives_without_it(serve, router, seed, model):
    pooled = simulate(scenario({"all": both(serve=serve)}, router=router, seed=seed, model=model))
    plain = simulate(scenario(serve=serve, router=router, seed=seed, model=model))
    check_alike(pooled, plain)


@given(replicas=st.integers(1, 4), router=routers, seed=st.integers(0, 1000))
@examples(15)
def test_replicas_of_a_dense_model_are_what_data_parallel_ranks_are(replicas, router, seed):
    pooled = simulate(scenario({"all": both(replicas=replicas)}, router=router, seed=seed))
    ranks = simulate(scenario(serve={"data_parallel_size": replicas}, router=router, seed=seed))
    check_alike(pooled, ranks)


@given(pools=st.dictionaries(st.sampled_from("abc"), st.fixed_dictionaries({}, optional={
    "replicas": st.integers(1, 2), "gpu": st.sampled_from(["h100", "l4"]), "serve": serves}).map(
        lambda pool: {**pool, "role": "both"}), min_size=1), jobs=st.integers(2, 4), seed=st.integers(0, 1000))
@examples(25)
@example(jobs=2, seed=0, pools={name: {"role": "both", "replicas": 2, "gpu": "h100", "serve": {
    "data_parallel_size": 3, "tensor_parallel_size": 2}} for name in "abc"})
def test_the_result_is_the_same_for_any_number_of_processes(pools, jobs, seed):
    made = scenario(pools, seed=seed, nodes=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "run_in_processes", lambda work, items, jobs: map(work, items))
        apart = simulate(made, jobs=jobs)
    assert not apart.remarks if Fleet.of(made).engines > 1 else "there is one engine" in apart.remarks[0]
    whole = simulate(made)
    assert (numbers(apart), apart.scenario) == (numbers(whole), whole.scenario)


def stepping(made: Scenario) -> Fleet:
    """The fleet of a scenario, whose engines take every step by itself."""
    fleet = Fleet.of(made)
    return evolve(fleet, pools=tuple(
        evolve(pool, deployment=evolve(pool.deployment, skips=False)) for pool in fleet.pools))


@given(roles=st.sampled_from([("prefill", "decode"), ("prefill", "both"), ("prefill", "decode", "both")]),
       router=st.sampled_from(catalog.names("cluster.pair_routers")), replicas=st.integers(1, 2),
       seed=st.integers(0, 99), connector=st.sampled_from(catalog.names("kv.transfer.connectors")),
       prefixes=st.booleans())
@examples(25)
def test_going_ahead_of_the_clock_changes_nothing(roles, router, replicas, seed, connector, prefixes):
    load = {"synthetic": UNIFORM["synthetic"] | ({"prefixes": {"groups": 2, "tokens": 64}} if prefixes else {})}
    pools = {f"{role}s": {"role": role, "replicas": replicas} for role in roles}
    made = scenario(pools, pair_router=router, seed=seed, workload=load,
                    serve={"kv_transfer_config": {"kv_connector": connector}})
    ahead, steps = simulate(made), simulate(stepping(made))
    for key in ahead.summary.keys() - {"pools"}:
        assert nearly(ahead.summary[key], steps.summary[key]), key
    for name in ahead.steps.column_names:
        assert nearly(ahead.steps[name].to_pylist(), steps.steps[name].to_pylist()), name


def nearly(one, other) -> bool:
    """Whether values are the same but for rounding: a moment is a sum, which begins elsewhere."""
    whole = isinstance(one, int | str) or one is None or (isinstance(one, list) and isinstance(one[0], int | str))
    return one == other if whole else one == pytest.approx(other, rel=1e-9, abs=1e-9, nan_ok=True)


@given(sizes=st.lists(st.integers(1, 20), max_size=12), per_node=st.integers(1, 10))
@examples(200)
def test_engines_lie_in_order_and_none_that_fits_straddles_nodes(sizes, per_node):
    firsts, needed = pack(sizes, per_node)
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
    assert [(part.system.name.split()[1], part.system.nodes) for part in fleet.machines] == [
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


def test_energy_counts_the_hosts_of_each_pool():
    """A host draws the same watts, which more GPUs share in one pool than in the other."""
    pools = {"a": both(replicas=3), "b": both(gpu="gb200")}
    summary = simulate(scenario(pools, energy={"host_watts": 1000.0, "nic_watts": 10.0})).summary
    watts = 3 * (1000 / 8 + 10) + (1000 / 72 + 10)
    assert summary["host_energy_joules"] == pytest.approx(watts * summary["duration"])


def test_a_fleet_that_splits_runs_in_one_process_and_it_is_said_why():
    made = scenario({"p": {"role": "prefill"}, "d": {"role": "decode"}})
    apart, whole = simulate(made, jobs=2), simulate(made)
    assert apart.remarks[0] == ("ran in one process, not in 2: prefill and decode engines send each other what they"
                                " computed")
    assert numbers(apart) == numbers(whole) and whole.summary["num_transfers"] == whole.summary["completed"] == 12


@pytest.mark.parametrize("roles", [("prefill", "decode"), ("prefill", "both"), ("both", "both")])
def test_a_streamed_run_has_the_numbers_of_a_run_in_memory(roles, tmp_path):
    made = scenario({"a": {"role": roles[0]}, "b": {"role": roles[1], "gpu": "h100"}}, nodes=2)
    streamed, whole = stream(made, tmp_path / "run").summary, simulate(made).summary
    for key in ("completed", "duration", "output_throughput", "energy_joules", "gpu", "gpus"):
        assert streamed[key] == (pytest.approx(whole[key]) if isinstance(whole[key], float) else whole[key])
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["pools"].keys() == {"a", "b"}


def test_a_power_cap_is_checked_against_each_gpu():
    with pytest.raises(ConfigError, match=r"power.cap: no step of llama-3.2-1b keeps 130 W on H100"):
        simulate(scenario({"a": both(gpu="l40s"), "b": both(gpu="h100")}, gpu=None, power={"cap": 130}))


def test_the_summary_names_every_gpu():
    assert simulate(scenario({"a": both(), "b": both(gpu="l4"), "c": both()})).summary["gpu"] == "h200, l4"


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios" / "fleets").glob("*.toml")), ids=lambda path: path.stem)
def test_a_fleet_that_ships_runs(path):
    made = Scenario.read(path)
    loads = [*made.workload.syntheses.items()]
    sizes = [f"{key}.count" for key, load in loads if load.arrivals.share is None]
    sizes += ["workload.count"] if made.workload.arrivals else []
    sizes += [] if loads else ["workload.replay.limit"]
    summary = simulate(made.with_values(dict.fromkeys(sizes, 20 // len(sizes)))).summary
    assert summary["completed"] >= 20 and summary["failed"] == summary["unfinished"] == 0
    assert summary.get("pools", {}).keys() == made.pools.keys()
    assert bool(summary.get("num_transfers")) == Fleet.of(made).splits


values = st.sampled_from([1, 2, {"name": "a"}, {"name": "a", "b": 1}])
tables = st.dictionaries(st.sampled_from("pqr"), values | st.dictionaries(st.sampled_from("xyz"), values))


@given(tables=st.lists(tables, min_size=1, max_size=4))
@examples(200)
def test_what_is_alike_and_what_is_beside_make_the_tables_again(tables):
    """A table that leaves out a key takes it from what is alike, so only what all have is."""
    whole = alike(tables)
    for table in tables:
        assert whole.keys() <= table.keys() and merged(whole, beside(whole, table)) == table
