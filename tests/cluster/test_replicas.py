"""Replicas start, are ready, drain and are gone."""

from itertools import pairwise

import pytest
import simpy
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.cluster.replicas import DRAINING, GONE, READY, STARTING, Replica, ScaledPool
from ksim.results.history import absent
from tests.results.by_hand import ENGINE

#: Seconds of a start.
START = 10.0
#: What may follow each state.
NEXT = {GONE: {STARTING}, STARTING: {READY, GONE}, READY: {DRAINING, GONE}, DRAINING: {GONE}}


def pool(places=4, ready=1):
    env = simpy.Environment()

    def start_up(replica):
        yield env.timeout(START)

    replicas = [Replica(number, (number,), [(0.0, READY if number < ready else GONE)]) for number in range(places)]
    return env, ScaledPool(env, "a", replicas, start_up, lambda replica: None)


def states(scaled):
    return [replica.state for replica in scaled.replicas]


def test_a_replica_is_ready_when_it_has_started():
    env, scaled = pool()
    scaled.scale(3)
    assert states(scaled) == [READY, STARTING, STARTING, GONE]
    env.run(START - 1)
    assert states(scaled) == [READY, STARTING, STARTING, GONE]
    env.run(START + 1)
    assert states(scaled) == [READY, READY, READY, GONE]


def test_a_start_that_is_given_up_ends_nowhere():
    env, scaled = pool()
    scaled.scale(2)
    env.run(START / 2)
    scaled.scale(1)
    scaled.scale(2)  # anew, from its beginning
    env.run(START + 1)
    assert states(scaled) == [READY, STARTING, GONE, GONE]
    env.run(2 * START)
    assert states(scaled) == [READY, READY, GONE, GONE]


def test_starting_replicas_go_first_and_then_those_that_have_been_ready_for_the_shortest_time():
    env, scaled = pool(ready=2)
    scaled.scale(3)
    env.run(START + 1)
    scaled.scale(4)
    scaled.scale(3)
    assert states(scaled) == [READY, READY, READY, GONE]
    scaled.scale(1)
    assert states(scaled) == [READY, GONE, GONE, GONE]


def test_one_that_has_requests_drains_until_the_last_has_ended():
    _, scaled = pool(ready=2)
    last = scaled.replicas[1]
    scaled.enter(last)
    scaled.enter(last)
    scaled.scale(1)
    assert last.state == DRAINING
    scaled.leave(last)
    assert last.state == DRAINING
    scaled.leave(last)
    assert last.state == GONE


def test_one_that_finds_no_place_is_pending_until_another_has_drained():
    env, scaled = pool(places=2, ready=2)
    scaled.enter(scaled.replicas[1])
    scaled.scale(1)
    scaled.scale(2)
    assert states(scaled) == [READY, DRAINING] and scaled.pending == 1
    scaled.leave(scaled.replicas[1])
    assert states(scaled) == [READY, STARTING] and not scaled.pending
    env.run(START + 1)
    assert states(scaled) == [READY, READY]


@given(st.lists(st.tuples(st.sampled_from(["scale", "enter", "leave", "wait"]), st.integers(0, 6)), max_size=40))
def test_states_follow_each_other_and_wishes_are_met_in_time(orders):
    env, scaled = pool(places=5)
    for order, number in orders:
        ready = scaled.those(READY)
        busy = [replica for replica in scaled.replicas if replica.under_way]
        if order == "scale":
            scaled.scale(number)
        elif order == "enter" and ready:
            scaled.enter(ready[number % len(ready)])
        elif order == "leave" and busy:
            scaled.leave(busy[number % len(busy)])
        else:
            env.run(env.now + 1 + number)
        assert len(scaled.those(STARTING, READY)) <= max(scaled.wanted, 0)
        assert len(scaled.those(STARTING, READY)) + scaled.pending == scaled.wanted
        assert all(not replica.under_way for replica in scaled.those(STARTING, GONE))
    for replica in scaled.replicas:
        assert all(after in NEXT[before] for (_, before), (_, after) in pairwise(replica.life))
        while replica.under_way:
            scaled.leave(replica)
    env.run(env.now + 3 * START)
    assert len(scaled.those(READY)) == min(scaled.wanted, 5)
    assert not scaled.those(STARTING, DRAINING)


@pytest.mark.parametrize(("life", "gone"), [
    ((), 0.0), (((0.0, "ready"),), 0.0), (((0.0, "gone"), (4.0, "starting"), (6.0, "ready")), 4.0),
    (((0.0, "ready"), (3.0, "draining"), (5.0, "gone"), (20.0, "starting")), 5.0)])
def test_an_engine_has_no_gpus_while_it_is_gone(life, gone):
    assert absent([evolve(ENGINE, life=life)], 10.0) == [gone]
