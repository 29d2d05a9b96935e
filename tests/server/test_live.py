"""A fleet that is played live does what a run on the same arrivals does."""

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.events import Failed, Finished, Rejected
from ksim.simulation.fleet import Fleet
from ksim.simulation.scenario import Scenario
from ksim.simulation.simulate import play
from tests.kv_transfer.fleets import split
from tests.laws.ahead import serves, workloads
from tests.laws.happenings import facts, times
from tests.laws.tiny import TINY
from tests.properties import examples
from tests.server.walls import Played, Wall, played


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


@given(serve=serves, workload=workloads, seed=st.integers(0, 100), aborts=aborts, n=st.sampled_from([1, 1, 3]))
@examples(32)
def test_nothing_is_left_of_a_request_whose_client_hangs_up(tiny, serve, workload, seed, aborts, n):
    workload["synthetic"]["n"] = n
    check_aborts(live_run({"model": tiny, "gpu": "h200", "oracle": "roofline", "seed": seed, "serve": serve,
                           "workload": workload}, aborts=aborts))


@given(data=st.data(), aborts=aborts)
@examples(32)
def test_nothing_is_left_of_a_split_request_whose_client_hangs_up(tiny, data, aborts):
    check_aborts(live_run(data.draw(split(tiny)), aborts=aborts))
