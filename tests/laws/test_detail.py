"""Detail alone never changes time: a run is the same in whole steps and rank by rank, where no rank differs."""

import json
from pathlib import Path
from typing import Any

import pytest
import simpy
from hypothesis import example, given
from hypothesis import strategies as st

from ksim.flow.events import Finished, RanksMet, Stepped
from ksim.network.routes import Hop, Route
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import simulate
from tests.engine.process_by_process import Exchange
from tests.laws.happenings import facts, times
from tests.laws.tiny import TINY, uniform
from tests.properties import examples
from tests.specs.hosts import as_toml, host

#: Nodes of two GPUs, so that rings of four have fast hops and slow ones.
PAIRS = """
name = "pairs of H200"
gpu = "h200"
gpus_per_node = 2
nodes = 2
interconnect = "nvlink"
inside = { bandwidth = "450 GB/s", efficiency = 0.824 }
network = { bandwidth = "50 GB/s", efficiency = 0.95 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the model, the system and the host are described."""
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(TINY))
    (path / "pairs.toml").write_text(PAIRS)
    (path / "free.toml").write_text(as_toml(host()))
    return path


#: A few requests that come one by one or all at once, alone or in sessions, and meet a cache that may be too small.
workloads = st.fixed_dictionaries({
    "synthetic": st.fixed_dictionaries({
        "arrivals": st.just({"process": "burst"}) | st.fixed_dictionaries(
            {"process": st.just("poisson"), "rate": st.sampled_from([50, 500, 5000])}),
        "prompt": st.just(uniform(1, 150)), "output": st.just(uniform(1, 10)),
        "count": st.integers(1, 10), "max_tokens": st.just(250),
    }, optional={"sessions": st.just({"turns": uniform(1, 3), "think": uniform("0 s", "1 s")})}),
}, optional={"max_concurrency": st.integers(1, 4)})
serves = st.fixed_dictionaries({
    "tensor_parallel_size": st.sampled_from([1, 2, 4]), "pipeline_parallel_size": st.sampled_from([1, 2]),
    "data_parallel_size": st.sampled_from([1, 2]), "scheduling_policy": st.sampled_from(["fcfs", "decode_first"]),
    "async_scheduling": st.booleans(), "max_num_seqs": st.sampled_from([2, 8]),
    "max_num_batched_tokens": st.sampled_from([32, 256]), "num_gpu_blocks_override": st.sampled_from([20, 500]),
    "max_model_len": st.just(256),
})
#: Products of 32 rows and more are cut; which lane is the longer one depends on how many SMs the other has.
overlaps = st.sampled_from([{}, {"overlap_stages": 2, "overlap_sms": 1}, {"overlap_stages": 4, "overlap_sms": 64}])
#: Limits under which clocks change within a run, or never reach the boost clock.
powers = st.sampled_from([{}, {}, {"cap": "150 W"}, {"clock": "1 GHz"}])


def by_ranks(table: dict[str, Any]) -> dict[str, Any]:
    """*table* with a process for each GPU that an engine has, none of which differs."""
    used = [gpu for pool in Fleet.of(Scenario.of(table)).pools for place in pool.places for gpu in pool.gpus(place)]
    return {**table, "detail": "rank", "ranks": {"slow": [{"gpu": gpu, "speed": 1.0} for gpu in used]}}


@given(serve=serves, overlap=overlaps, workload=workloads, system=st.sampled_from(["hgx-h200", "pairs.toml"]),
       host=st.sampled_from(["default", "free.toml"]), power=powers, seed=st.integers(0, 1000))
@examples(28)
def test_a_run_is_the_same_in_whole_steps_and_rank_by_rank(folder, serve, overlap, workload, system, host, power, seed):
    serve = serve if serve["tensor_parallel_size"] == 1 else {**serve, **overlap}
    scenario = {"model": str(folder / "config.json"), "serve": serve, "workload": workload, "seed": seed,
                "nodes": 8, "system": str(folder / system) if "." in system else system, "power": power,
                "host": str(folder / host) if "." in host else host}
    whole, fine = (simulate(Scenario.of(table)).log for table in (scenario, by_ranks(scenario)))
    assert any(whole.of(Finished))
    assert facts(fine) == facts(whole)
    assert times(fine) == pytest.approx(times(whole), rel=1e-9)
    for met in fine.of(RanksMet):
        assert len(met.gpus) == serve["tensor_parallel_size"]
        assert met.waits == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("serve", "more"), [
    ({}, {}), ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, {"power": {"cap": "400 W"}}),
    ({"data_parallel_size": 2, "tensor_parallel_size": 2}, {"ranks": {"experts": "even"}})])
def test_where_no_rank_can_differ_a_run_is_the_same_to_the_last_bit(folder, serve, more):
    table = {"model": str(folder / "config.json"), "system": "hgx-h200", "serve": {"max_model_len": 256, **serve},
             "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 500}, "count": 20,
                                        "prompt": uniform(1, 150), "output": uniform(1, 10)}}}
    table |= {key: value for key, value in more.items() if key == "power"}
    whole, fine = (simulate(Scenario.of(each)).log for each in (table, {**table, **more, "detail": "rank"}))
    assert facts(fine) == facts(whole) and times(fine) == times(whole)
    assert not any(fine.of(RanksMet))


def test_ranks_over_two_nodes_do_exchange_unevenly(folder):
    """So that the law above is tried where it is hardest: a ring of four has two hops of each kind."""
    table = {"model": str(folder / "config.json"), "system": str(folder / "pairs.toml"), "workload": {"synthetic": {
        "arrivals": {"process": "burst"}, "prompt": uniform(9, 9), "output": uniform(1, 1), "count": 1}},
        "serve": {"tensor_parallel_size": 4, "num_gpu_blocks_override": 500, "max_model_len": 256}, "detail": "rank"}
    site = Deployment.of(Scenario.of(table))
    (step,) = simulate(Scenario.of(table)).log.of(Stepped)
    timer, = site.timers()
    messages = [kernel for kernel, cost, _ in timer.launches(step.batch) if cost.group]
    assert messages
    assert all(site.network.route(message, range(4)).even is None for message in messages)


hops = st.builds(Hop, st.integers(0, 4), st.integers(0, 4), st.floats(0, 9), st.floats(0, 9)).filter(
    lambda hop: hop.source != hop.target)
#: Rounds in which all hops are alike are what most algorithms have, and have a shortcut.
alike = st.builds(lambda hops, latency, per_byte: [Hop(hop.source, hop.target, latency, per_byte) for hop in hops],
                  st.lists(hops, min_size=1, max_size=6), st.floats(0, 9), st.floats(0, 9))
rounds = st.lists(st.lists(hops, max_size=6), max_size=5) | st.lists(alike, max_size=5)


@given(rounds=rounds, sizes=st.lists(st.floats(0, 9), min_size=2, max_size=12))
@example(rounds=[[Hop(0, 1, 0.0, 1.0)], [Hop(0, 1, 3.09e-06, 0.0), Hop(2, 0, 3.09e-06, 0.0)]], sizes=[0.5, 1.0])
def test_a_route_takes_as_long_whatever_sizes_it_was_asked_about_before(rounds, sizes):
    """What it remembers of two sizes holds for those between only where the same chain of hops is the slowest."""
    def route():
        return Route("any", "any", 1.0, tuple(map(tuple, rounds)))
    asked = route()
    assert [asked.seconds(size) for size in sizes] == pytest.approx([route().seconds(size) for size in sizes], rel=1e-9)


@given(rounds=rounds, start=st.floats(0, 9), size=st.floats(0, 9))
@example(rounds=[[Hop(1, 0, 1.0, 1.0)], [Hop(0, 2, 1e-10, 0.0), Hop(2, 0, 1e-10, 0.0)]], start=0.0, size=1.0)
@examples(200)
def test_a_route_takes_as_long_as_its_ranks_take_to_exchange(rounds, start, size):
    """Whoever sends what to whom, and however long each hop takes."""
    route, env = Route("any", "any", start, tuple(map(tuple, rounds))), simpy.Environment()
    exchange = Exchange(env, route, size)
    env.run(env.all_of([env.process(exchange.take_part(rank)) for rank in range(5)]))
    assert env.now == pytest.approx(route.seconds(size), rel=1e-12)
