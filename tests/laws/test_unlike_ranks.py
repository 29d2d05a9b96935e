"""GPUs that differ: how much longer a step takes is what its critical path says, and who waits is told why."""

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simpy
from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from ksim.compute.graph import Collective
from ksim.cost.step import StepTimer
from ksim.flow.events import WAITS, RanksMet, Stepped
from ksim.flow.log import Log
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.network.routes import Hop
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.simulate import simulate
from tests.cost.toys import ALL, network, system
from tests.engine.process_by_process import Exchange
from tests.laws.happenings import facts, times
from tests.laws.small import SMALL
from tests.laws.tiny import uniform
from tests.properties import examples
from tests.specs.hosts import as_toml, host

#: Kernels of milliseconds, on eight GPUs.
DENSE = "llama-3.1-8b"
SIZES = st.floats(0, 31).map(lambda exponent: 2.0**exponent)


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A host that takes no time, so that nobody waits for launches."""
    path = tmp_path_factory.mktemp("hosts") / "free.toml"
    path.write_text(as_toml(host()))
    return str(path)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "experts.json"
    path.write_text(json.dumps(SMALL["experts"]))
    return str(path)


def run(free: str, ranks: dict[str, Any] | None = None, *, prompt: int = 2000, output: int = 6, count: int = 1,
        tensor_parallel_size: int = 8, serve: dict[str, Any] | None = None, **more: Any) -> Log:
    """The log of requests that come at once; with *ranks*, these are processes."""
    table = {"model": DENSE, "gpu": "h200", "oracle": "roofline", "host": free, **more,
             "serve": {"tensor_parallel_size": tensor_parallel_size, "max_model_len": 4096, **(serve or {})},
             "workload": {"synthetic": {"arrivals": {"process": "burst"}, "count": count,
                                        "prompt": {"kind": "fixed", "value": prompt},
                                        "output": {"kind": "fixed", "value": output}}}}
    detail = {} if ranks is None else {"detail": "rank", "ranks": ranks}
    return simulate(Scenario.of({**table, **detail})).log


def eight() -> Deployment:
    """The dense model on the eight GPUs of a node."""
    return Deployment.of(Scenario.of({"model": DENSE, "gpu": "h200", "oracle": "roofline", "workload": ANY_WORKLOAD,
                                      "serve": {"tensor_parallel_size": 8}}))


def steps(log: Log) -> list[Stepped]:
    return sorted(log.of(Stepped), key=lambda step: (step.engine, step.index))


def lasting(log: Log) -> list[float]:
    """How long each step took."""
    return [step.end - step.start for step in steps(log)]


def split(step: Stepped) -> tuple[float, float]:
    """The seconds of kernels and of collectives in a step without waiting."""
    spans = [(span, count) for span, count in step.step_costs[0].counted() if span.label != "wait_for_ranks"]
    return (sum(count * span.seconds for span, count in spans if not span.group),
            sum(count * span.seconds for span, count in spans if span.group))


def told(met: RanksMet, **by_cause: Sequence[float] | float) -> None:
    """Ranks waited for these causes as long, and for no other."""
    for cause, waits in zip(WAITS, met.waits, strict=True):
        assert waits == pytest.approx(by_cause.get(cause, 0.0), rel=1e-6, abs=1e-9), cause


def test_one_slow_gpu_of_eight_costs_what_it_computes_longer(free):
    """All wait in each collective until it comes; its kernels take 1 / 0.9 of the time, and messages as long as before.
    """
    even, slow = run(free), run(free, {"slow": [{"gpu": 5, "speed": 0.9}]})
    for taken, step, met in zip(lasting(slow), steps(even), slow.of(RanksMet), strict=True):
        compute, messages = split(step)
        assert compute > 0 < messages
        assert taken == pytest.approx(compute / 0.9 + messages, rel=1e-9)
        told(met, clock=np.where(met.gpus == 5, 0.0, compute / 0.9 - compute))
        assert met.busy == pytest.approx(np.where(met.gpus == 5, compute / 0.9, compute))


def test_a_gpu_is_slow_from_a_moment_on_and_until_another(free):
    """The step in which it becomes itself again takes something in between."""
    even = run(free, output=12)
    start: Any = steps(even)[3].end
    slowed = run(free, {"slow": [{"gpu": 5, "speed": 0.5, "start": f"{start!r} s"}]}, output=12)
    parts = [split(step) for step in steps(even)]
    expected = [compute * (2 if number > 3 else 1) + messages for number, (compute, messages) in enumerate(parts)]
    assert lasting(slowed) == pytest.approx(expected, rel=1e-9)
    end = steps(slowed)[7].end - expected[7] / 3
    again = run(free, {"slow": [{"gpu": 5, "speed": 0.5, "start": f"{start!r} s", "end": f"{end!r} s"}]}, output=12)
    expected[8:] = [compute + messages for compute, messages in parts[8:]]
    found = lasting(again)
    assert sum(parts[7]) < found[7] < expected[7]
    del found[7], expected[7]
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_low_clock_slows_what_compute_bounds_alone(free):
    clocks = eight().gpu.power.clocks
    assert clocks is not None
    factor = clocks.slowed(1e9)
    even, slow = run(free), run(free, {"slow": [{"gpu": 2, "clock": "1 GHz"}]})
    for taken, step, met in zip(lasting(slow), steps(even), slow.of(RanksMet), strict=True):
        cost = step.step_costs[0]
        later = (factor - 1) * cost.compute_bound
        assert taken == pytest.approx(cost.seconds + later, rel=1e-9)
        told(met, clock=np.where(met.gpus == 2, 0.0, later))
    prefill, decode = steps(even)[0].step_costs[0], steps(even)[1].step_costs[0]
    assert factor > 1.4 and prefill.compute_bound > 0.3 * prefill.seconds > 0 == decode.compute_bound


def test_a_gpu_that_leaks_has_as_much_less_of_its_limit(free):
    """100 W more beneath a cap of 530 W: all go as fast as eight GPUs beneath 430 W."""
    load: dict[str, Any] = {"prompt": 3000, "count": 12, "output": 3}
    hot = run(free, {"slow": [{"gpu": 1, "watts": 100.0}]}, power={"cap": "530 W"}, **load)
    capped, wide = (run(free, power={"cap": cap}, **load) for cap in ("430 W", "530 W"))
    assert lasting(hot) == pytest.approx(lasting(capped), rel=1e-9)
    assert sum(lasting(capped)) > 1.05 * sum(lasting(wide))


def test_a_late_host_keeps_up_everybody(free):
    even, late = run(free), run(free, {"slow": [{"gpu": 7, "delay": "1 ms"}]})
    for taken, before, met in zip(lasting(late), lasting(even), late.of(RanksMet), strict=True):
        assert taken == pytest.approx(before + 1e-3, rel=1e-9)
        told(met, host=np.where(met.gpus == 7, 0.0, 1e-3))


def test_steps_wait_for_the_latest_of_hosts_that_jitter(free):
    """The expected last of eight exponential delays is the mean times 1 + 1/2 + ... + 1/8."""
    even, late = run(free, output=300), run(free, {"launch_jitter": "100 us"}, output=300)
    later = np.array(lasting(late)) - lasting(even)
    assert (later > 0).all()
    first = np.array([met.start for met in late.of(RanksMet)]) - [step.start for step in steps(late)]
    assert first == pytest.approx(0, abs=1e-12)  # a step starts when its first rank does
    spread = 1e-4 * sum(1 / rank for rank in range(1, 8))  # between the first and the last
    assert later.mean() == pytest.approx(spread, rel=0.1)
    for met in late.of(RanksMet):
        told(met, host=met.waits[WAITS.index("host")])
        assert met.waits.sum(axis=0).min() == pytest.approx(0, abs=1e-12)


def test_narrow_links_of_one_gpu_make_messages_as_slow_as_their_slowest_chain(free):
    """Messages are as slow as their slowest chain of hops; kernels take as long as before."""
    even, narrow = run(free), run(free, {"slow": [{"gpu": 3, "link": 0.5}]})
    site = eight()
    (timer,) = site.timers()
    for taken, step, met in zip(lasting(narrow), steps(even), narrow.of(RanksMet), strict=True):
        later = 0.0
        for launch, _, repeat in timer.launches(step.batch):
            if isinstance(launch, Collective):
                route = site.network.route(launch, range(8))
                later += repeat * (route.slowed({3: 0.5}).seconds(launch.bytes) - route.seconds(launch.bytes))
        assert later > 0
        assert taken == pytest.approx(step.step_costs[0].seconds + later, rel=1e-9)
        told(met, link=later)


def slower(hop: Hop, shares: dict[int, float]) -> Hop:
    """*hop* where the bytes go no faster than over the narrower of its ends."""
    return evolve(hop, per_byte=hop.per_byte / min(shares.get(hop.source, 1.0), shares.get(hop.target, 1.0)))


def taken() -> list[tuple[str, str, int]]:
    """Each algorithm with the kinds and numbers of ranks that it takes."""
    return [(name, kind, ranks) for name, kind, ranks in product(
        ALL, ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"), range(2, 17))
        if catalog.find("network.collectives", name)().takes(kind, ranks, 2.0**20)]


@given(what=st.sampled_from(taken()), size=SIZES,
       shares=st.dictionaries(st.integers(0, 15), st.sampled_from([0.1, 0.5, 0.9, 1.0]), max_size=3))
@examples(200)
def test_collectives_over_narrow_links_take_as_long_as_their_ranks_take_to_exchange(what, size, shares):
    name, kind, ranks = what
    over = network("hgx-h200", name, nodes=2)
    try:
        route = over.route(Collective(kind, size, "tensor"), range(ranks))
    except ConfigError:
        assume(False)
    rounds = tuple(tuple(slower(hop, shares) for hop in hops) for hops in route.rounds)
    env = simpy.Environment()
    exchange = Exchange(env, evolve(route, rounds=rounds), size)
    env.run(env.all_of([env.process(exchange.take_part(rank)) for rank in range(ranks)]))
    slowed = route.slowed(shares)
    assert slowed.seconds(size) == pytest.approx(env.now, rel=1e-9)
    assert slowed.seconds(size) >= route.seconds(size) * (1 - 1e-12)
    assert route.slowed(dict.fromkeys(range(ranks), 1.0)).seconds(size) == route.seconds(size)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_ring_is_as_slow_as_its_slowest_hop(ranks, share):
    """The slow rank sends and receives in each round."""
    message = Collective("all_reduce", 1e8, "tensor")
    route = network("hgx-h200", "ring").route(message, range(ranks))
    hops = [hops[0] for hops in route.rounds]
    expected = route.start + sum(hop.latency + 1e8 * hop.per_byte / share for hop in hops)
    assert route.slowed({1: share}).seconds(1e8) == pytest.approx(expected, rel=1e-9)


def test_what_ranks_are_and_how_long_adds_up(free):
    """Busy, waiting and in collectives, each rank of each step; collectives take all of them as long."""
    settings = {"slow": [{"gpu": 1, "clock": "800 MHz", "speed": 0.97}, {"gpu": 2, "link": 0.3}], "speed_spread": 0.05,
                "power_spread": 0.3}
    log = run(free, settings, count=6, power={"cap": "350 W"}, prompt=1500)
    mets, even = [*log.of(RanksMet)], steps(log)
    assert len(mets) == len(even)
    for met, step in zip(mets, even, strict=True):
        _, messages = split(step)
        narrow = met.waits[WAITS.index("link")]
        assert narrow == pytest.approx(np.full(8, narrow[0])) and narrow[0] > 0
        assert met.busy + met.waits.sum(axis=0) + messages == pytest.approx(np.full(8, met.time - met.start), rel=1e-9)
        waits = met.waits.sum(axis=0) - narrow
        assert (waits > -1e-12).all()
        told(met, clock=waits, link=narrow)


# Data ranks of a mixture.

def rounds(log: Log) -> list[tuple[float, float]]:
    """The start and the end of each step of all engines together, dummies among them."""
    by_index: dict[int, list[Stepped]] = {}
    for step in log.of(Stepped):
        by_index.setdefault(step.index, []).append(step)
    return [(min(step.start for step in of), max(step.end for step in of)) for _, of in sorted(by_index.items())]


@pytest.mark.parametrize("ranks", [2, 4])
def test_data_ranks_with_equal_batches_and_even_experts_take_as_long_as_whole_steps(free, mixture, ranks):
    more: dict[str, Any] = {"model": mixture, "tensor_parallel_size": 1, "count": ranks, "prompt": 200,
                            "serve": {"data_parallel_size": ranks}}
    whole, fine = run(free, **more), run(free, {"experts": "even"}, **more)
    assert facts(fine) == facts(whole)
    assert times(fine) == pytest.approx(times(whole), rel=1e-9)
    for met in fine.of(RanksMet):
        assert met.gpus.tolist() == [*range(ranks)]
        told(met)


@pytest.mark.parametrize("backend", ["deepep_high_throughput", "deepep_low_latency"])
def test_data_ranks_send_the_tokens_of_two_micro_batches_one_after_the_other(free, mixture, backend):
    """As whole steps have it; the fullest expert of so few tokens is a little fuller than on average."""
    more: dict[str, Any] = {"model": mixture, "tensor_parallel_size": 1, "count": 16, "prompt": 200, "serve": {
        "data_parallel_size": 2, "enable_expert_parallel": True, "all2all_backend": backend, "enable_dbo": True,
        "dbo_decode_token_threshold": 2, "dbo_prefill_token_threshold": 2}}
    whole, fine = steps(run(free, **more)), steps(run(free, {"experts": "even"}, **more))
    assert [step.end for step in fine] == pytest.approx([step.end for step in whole], rel=3e-3)
    assert all(step.step_costs[0].launch.endswith("two micro-batches") for step in fine)


@given(prompts=st.sampled_from([2, 4]).flatmap(lambda ranks: st.tuples(*[st.integers(1, 2000)] * ranks)))
@examples(20)
def test_data_ranks_that_meet_in_every_layer_are_no_faster_than_the_slowest(free, mixture, prompts):
    """Nor slower than all of them one after another; who has the shorter batch waits, for the other requests."""
    table = {"model": mixture, "gpu": "h200", "oracle": "roofline", "host": free,
             "serve": {"data_parallel_size": len(prompts), "max_model_len": 4096, "num_gpu_blocks_override": 500}}
    trace = Path(free).parent / f"{'_'.join(map(str, prompts))}.csv"
    trace.write_text("arrival,prompt,output\n" + "".join(f"0,{prompt},1\n" for prompt in prompts))
    table["workload"] = {"replay": {"path": str(trace)}}
    whole, fine = (simulate(Scenario.of({**table, **detail})).log for detail in (
        {}, {"detail": "rank", "ranks": {"experts": "even"}}))
    ((begin, end),), ((_, met_at),) = rounds(whole), rounds(fine)
    alone = [split(step)[0] + split(step)[1] for step in steps(whole)]
    assert met_at - begin >= (end - begin) * (1 - 1e-9)
    assert met_at - begin <= sum(alone) * (1 + 1e-9)
    (met,) = fine.of(RanksMet)
    told(met, requests=met.waits[WAITS.index("requests")])
    assert len(met.gpus) == len(prompts)


def test_idle_data_ranks_compute_dummies_and_wait(free, mixture):
    """One request on four engines: three compute a token beside it in each step."""
    log = run(free, {"experts": "even"}, model=mixture, tensor_parallel_size=1, count=1, prompt=900,
              serve={"data_parallel_size": 4})
    of_engine = [[step for step in steps(log) if step.engine == engine] for engine in range(4)]
    assert {len(own) for own in of_engine} == {6}
    assert [sum(step.batch.tokens for step in own) for own in of_engine] == [905, 0, 0, 0]
    mets = [*log.of(RanksMet)]
    assert len(mets) == 6 and all(met.gpus.tolist() == [0, 1, 2, 3] for met in mets)
    told(mets[0], requests=mets[0].waits[0])
    assert mets[0].waits[0][0] == pytest.approx(0, abs=1e-12) and (mets[0].waits[0][1:] > 0).all()


# Prices that engines share.

@pytest.mark.parametrize(("more", "shares"), [
    ({"model": "experts", "serve": {"data_parallel_size": 4}}, 3),
    ({"model": "experts", "serve": {"tensor_parallel_size": 2, "data_parallel_size": 4}}, 3),
    ({"model": "experts", "system": "pcie-l4", "gpu": None,
      "serve": {"tensor_parallel_size": 2, "data_parallel_size": 4}}, 0),
    ({"model": "experts", "system": "pcie-l4", "gpu": None, "nodes": 2,
      "serve": {"tensor_parallel_size": 4, "data_parallel_size": 4}}, 2),
    ({"serve": {"tensor_parallel_size": 2, "data_parallel_size": 3}}, 0)])
def test_engines_of_a_replica_whose_gpus_have_the_same_links_share_plans_and_nothing_changes(
        mixture, monkeypatch, more, shares):
    """Replicas that share no experts share none: each may run in a process of its own."""
    model = mixture if more.get("model") else str(Path(mixture).with_name("dense.json"))
    Path(mixture).with_name("dense.json").write_text(json.dumps(SMALL["dense"]))
    table = {"gpu": "h200", "oracle": "roofline", **more, "model": model,
             "serve": {"max_model_len": 512, **more["serve"]},
             "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 500}, "count": 12,
                                        "prompt": uniform(1, 200), "output": uniform(1, 8)}}}
    scenario = Scenario.of({key: value for key, value in table.items() if value is not None})
    shared, plan_as = [], StepTimer.plan_as
    monkeypatch.setattr(StepTimer, "plan_as", lambda own, other: shared.append(own) or plan_as(own, other))
    together = simulate(scenario).log
    assert len(shared) == shares
    apart = iter(range(100))
    monkeypatch.setattr(Deployment, "patterns", lambda site, groups: next(apart))
    alone = simulate(scenario).log
    assert len(shared) == shares
    assert facts(together) == facts(alone) and times(together) == pytest.approx(times(alone), rel=1e-12)


groups = st.lists(st.integers(0, 15), min_size=2, max_size=8, unique=True)


def moved(ranks: Sequence[int], by: Callable[[int], int]) -> list[int]:
    return [by(rank) for rank in ranks]


@given(name=st.sampled_from(["hgx-h200", "pcie-l4", "gh200"]), ranks=groups, others=groups | st.none(),
       shift=st.integers(0, 15), size=SIZES, kind=st.sampled_from(["all_reduce", "all_gather"]))
@examples(200)
def test_collectives_of_groups_with_the_same_pattern_take_as_long(name, ranks, others, shift, size, kind):
    """Such as those that lie elsewhere in the same way, or in other nodes."""
    nodes = 16 // system(name).gpus_per_node
    over = network(name, nodes=nodes)
    others = others or moved(ranks, lambda rank: (rank + shift) % 16)
    seconds = [over.seconds(Collective(kind, size, "tensor"), of) for of in (ranks, others)]
    if over.pattern(ranks) == over.pattern(others):
        assert seconds[0] == seconds[1]
    swapped = moved(ranks, lambda rank: (rank + over.system.gpus_per_node) % 16)
    assert over.pattern(swapped) == over.pattern(ranks)


def test_groups_that_straddle_sockets_are_not_alike():
    """Four GPUs at each socket of a node; behind one switch, all are alike."""
    sockets, switch = network("pcie-h100"), network("hgx-h200")
    message = Collective("all_reduce", 1e7, "tensor")
    assert sockets.pattern((2, 3, 4, 5)) != sockets.pattern((0, 1, 2, 3))
    assert sockets.seconds(message, (2, 3, 4, 5)) > sockets.seconds(message, (0, 1, 2, 3))
    assert switch.pattern((2, 3, 4, 5)) == switch.pattern((0, 1, 2, 3))
