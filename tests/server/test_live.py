"""A fleet that is played live does what a run on the same arrivals does."""

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from ksim.flow.events import Arrived, Failed, Finished, Rejected
from ksim.flow.request import Request
from ksim.scenario.scenario import Scenario
from ksim.server.live import Live
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play
from tests.kv.offload.runs import MULTI_TIER, requests, scenario
from tests.kv.transfer.fleets import split
from tests.laws.ahead import serves, workloads
from tests.laws.happenings import facts, times
from tests.laws.tiny import TINY, uniform
from tests.properties import examples
from tests.server.fake import Ear, Played, Wall, played


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.json"
    path.write_text(json.dumps(TINY))
    return str(path)


def alone(table):
    """The scenario *table* without what real clients do themselves: wait for each other, and take turns."""
    table["workload"].pop("max_concurrency", None)
    table["workload"]["synthetic"].pop("sessions", None)
    return table


def live_run(table, **more):
    made = Scenario.of(alone(table))
    return played(Fleet.of(made), made.workload.requests(made.seed), **more)


def check(run: Played) -> None:
    """Each client heard all of its tokens, when the log says that it had them, and a run does the same."""
    fleet = run.live.fleet
    again, ahead = (play(evolve(fleet, pools=tuple(
        evolve(pool, deployment=evolve(pool.deployment, skips=skips)) for pool in fleet.pools)), run.requests).log
        for skips in (False, True))
    assert facts(run.log) == facts(again) and times(run.log) == times(again)
    assert facts(run.log) == facts(ahead)
    assert times(run.log) == pytest.approx(times(ahead), rel=1e-9)
    ends = {event.request_id: event.time for event in run.log.of(Finished)}
    for request, ear in zip(run.requests, run.ears, strict=True):
        if request.id in ends:
            reason = "stop" if request.max_tokens and request.output < request.max_tokens else "length"
            assert ear.end == (reason, ends[request.id]) and ear.times[-1] == ends[request.id]
            lengths = request.outputs or [request.output] * max(request.n, request.beam_width)
            assert [ear.tokens_heard[place] for place in range(len(lengths))] == [*lengths]


def nothing_left(run: Played) -> None:
    """No engine knows of any request, and no block is held."""
    for engine in run.live.engines:
        scheduler: Any = engine.scheduler
        assert not (scheduler.running or scheduler.waiting or engine._done or engine._inbox or engine._sent)
        assert not engine._aborted and not engine.outstanding and not engine._frontend.env._queue
        assert scheduler.cache.pool.used == 0
        if engine.endpoint is not None:
            endpoint = engine.endpoint
            assert not (endpoint.waiting_for_peer or endpoint.expected or endpoint.unannounced or endpoint._unloaded
                        or scheduler.transfers.held)


#: What routers and gateways know, and how late; gateways that are so full that some requests wait and some are refused.
routers = st.sampled_from(["least_outstanding", "prefix_aware", "sglang_cache_aware", "dynamo_kv", "llm_d"])
signals = st.fixed_dictionaries({"scrape_interval": st.sampled_from(["0 s", "1 ms", "50 ms"]),
                                 "delay": st.sampled_from(["0 s", "0.3 ms", "20 ms"]),
                                 "loss": st.sampled_from([0, 0, 0.3])})
controls = st.sampled_from([{}, *({"flow_control": control} for control in (
    {"name": "queue_limit", "queue_depth_threshold": 1, "max_requests": 1, "default_request_ttl": "30 ms"},
    {"name": "fair_queue", "queue_depth_threshold": 1, "max_requests": 2, "default_request_ttl": "30 ms"},
    {"name": "predicted_ttft", "ttft_slo": "3 ms"}))])
tiers = st.fixed_dictionaries({"connector": st.sampled_from([{}, MULTI_TIER]), "blocks": st.sampled_from([12, 60]),
                               "seed": st.integers(0, 99), "delay": st.sampled_from(["0 s", "4 ms"])})


def fleet_of(model, serve, workload, **more):
    """A fleet of three engines."""
    return {"model": model, "gpu": "h200", "oracle": "roofline", "workload": workload,
            "serve": {**serve, "data_parallel_size": 3, "prefix_cache": "vllm"}, **more}


def offloading(model, connector, blocks, seed, delay):
    """Two engines with little room on their GPUs, and so many *blocks* of room below."""
    load = requests(10, 300, uniform(40, 150), uniform(1, 25), prefixes={"groups": 2, "tokens": 64})
    made = scenario(model, blocks, load, seed, {"all": {"role": "both", "replicas": 2}}, connector)
    return {**made, "router": "prefix_aware", "signals": {"delay": delay}}


@given(serve=serves, workload=workloads, seed=st.integers(0, 100), speed=st.sampled_from([0.5, 1.0, 7.0]),
       parsing=st.sampled_from([0.0, 0.0, 0.0004, 0.01]))
@examples(32)
def test_an_engine_played_live_does_what_a_run_does(tiny, serve, workload, seed, speed, parsing):
    run = live_run({"model": tiny, "gpu": "h200", "oracle": "roofline", "seed": seed, "serve": serve,
                    "workload": workload}, speed=speed, parsing=parsing)
    check(run)
    nothing_left(run)


@given(data=st.data())
@examples(24)
def test_a_split_fleet_played_live_does_what_a_run_does(tiny, data):
    check(live_run(data.draw(split(tiny))))


@given(serve=serves, workload=workloads, seed=st.integers(0, 100), router=routers, signals=signals, control=controls)
@examples(16)
def test_routers_and_gateways_with_late_signals_do_live_what_they_do_in_a_run(
        tiny, serve, workload, seed, router, signals, control):
    run = live_run(fleet_of(tiny, serve, workload, seed=seed, router=router, signals=signals, **control))
    check(run)
    nothing_left(run)


@given(case=tiers)
@examples(12)
def test_offloading_tiers_filled_live_are_those_of_a_run(tiny, case):
    check(live_run(offloading(tiny, **case)))


#: By the place of a request, how many seconds after it was sent its client hangs up.
aborts = st.dictionaries(st.integers(0, 20), st.sampled_from([0.0, 1e-4, 5e-4, 1e-3, 3e-3, 0.01, 0.05]) |
                         st.floats(0.0, 0.05), min_size=1)


def check_aborts(run: Played) -> None:
    """Nothing is left of those that were aborted, and all others get what they asked for."""
    for request, ear in zip(run.requests, run.ears, strict=True):
        if ear.end and ear.end[0] in ("length", "stop"):
            lengths = request.outputs or [request.output] * max(request.n, request.beam_width)
            assert [ear.tokens_heard[place] for place in range(len(lengths))] == [*lengths]
    ended: list[Any] = [*run.log.of(Finished), *run.log.of(Failed), *run.log.of(Rejected)]
    assert sorted(event.request_id for event in ended) == [request.id for request in run.requests]
    assert not run.live._reasons and not run.live.handles
    assert isinstance(run.live.wall, Wall)
    run.live.wall.time += 1000.0  # leases end
    run.live.advance()
    nothing_left(run)
    again = play(run.live.fleet, run.requests).log
    live, replay = ([fact for fact in facts(log) if fact[0] is not Arrived] for log in (run.log, again))
    assert live == replay and times(run.log) == times(again)
    assert {event.request_id: event for event in run.log.of(Failed)} == {
        event.request_id: event for event in again.of(Failed)}


@given(serve=serves, workload=workloads, seed=st.integers(0, 100), aborts=aborts, n=st.sampled_from([1, 1, 3]))
@example(serve={"max_num_seqs": 2, "max_num_batched_tokens": 32, "num_gpu_blocks_override": 20, "max_model_len": 256,
                "async_scheduling": False}, seed=0, n=1, aborts={0: 0.02023425988695568, 1: 0.01953125},
         workload={"synthetic": {"arrivals": {"process": "burst"}, "prompt": uniform(1, 150), "output": uniform(20, 90),
                                 "count": 2, "max_tokens": 250}})
@examples(32)
def test_nothing_is_left_of_a_request_whose_client_hangs_up(tiny, serve, workload, seed, aborts, n):
    workload["synthetic"]["n"] = n
    check_aborts(live_run({"model": tiny, "gpu": "h200", "oracle": "roofline", "seed": seed, "serve": serve,
                           "workload": workload}, aborts=aborts))


@given(serve=serves, workload=workloads, seed=st.integers(0, 100), aborts=aborts, control=controls)
@examples(16)
def test_nothing_is_left_of_a_request_whose_client_hangs_up_at_the_gateway(
        tiny, serve, workload, seed, aborts, control):
    check_aborts(live_run(fleet_of(tiny, serve, workload, seed=seed, **control), aborts=aborts))


@given(data=st.data(), aborts=aborts)
@examples(32)
def test_nothing_is_left_of_a_split_request_whose_client_hangs_up(tiny, data, aborts):
    check_aborts(live_run(data.draw(split(tiny)), aborts=aborts))


def test_a_request_arrives_when_it_came_unless_later_moments_have_been_played(tiny):
    wall = Wall(7.0)
    live = Live(Fleet.of(Scenario.of(fleet_of(tiny, {}, {"synthetic": {
        "arrivals": {"process": "burst"}, "prompt": uniform(1, 9), "output": uniform(1, 9)}}))), wall=wall)
    arrivals = []
    for time, came in ((7.0, None), (8.0, 7.5), (9.0, 7.25), (9.5, None), (9.75, 9.6)):
        wall.time = time
        arrivals.append(live.submit(Request(0, 0.0, 20, 3), Ear(), came).request.arrival)
        while live.advance() <= 0:
            pass
    assert arrivals[:2] == [0.0, 0.5] and arrivals[3] == 2.5
    assert 0.5 < arrivals[2] < 0.6, "the request before has been played"
    assert arrivals[4] == pytest.approx(2.6, abs=1e-6)


def test_a_client_whose_listener_fails_hears_of_an_error_and_others_go_on(tiny):
    class Broken(Ear):
        def tokens(self, count, time, sequence):
            raise ValueError("cannot be written")

    wall, ears = Wall(), [Broken(), Ear()]
    live = Live(Fleet.of(Scenario.of(fleet_of(tiny, {}, {"synthetic": {
        "arrivals": {"process": "burst"}, "prompt": uniform(1, 9), "output": uniform(1, 9)}}))), wall=wall)
    for ear in ears:
        live.submit(Request(0, 0.0, 20, 3), ear)
    wall.time = 9.0
    while live.advance() <= 0:
        pass
    assert ears[0].end[0] == "error" and ears[1].end[0] == "length" and not live.handles
