"""Replicas start, are ready, drain and are gone."""

from itertools import pairwise

import pytest
import simpy
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.cluster.replicas import DRAINING, GONE, READY, STARTING, WARM, Replica, ScaledPool
from ksim.results.history import absent
from tests.results.by_hand import ENGINE

#: Seconds of a start, and those in which one falls asleep and wakes.
START, SLEEP, WAKE = 10.0, 0.5, 1.0
#: What may follow each state.
NEXT = {GONE: {STARTING}, STARTING: {READY, GONE}, READY: {DRAINING, GONE}, DRAINING: {GONE}}
WITH_WARM = {GONE: {STARTING, WARM}, WARM: {STARTING, GONE}, **{state: {*NEXT[state], WARM} for state in NEXT if state
                                                                 != GONE}}


def pool(places=4, ready=1, warm=0):
    env = simpy.Environment()

    def lasting(seconds):
        return lambda replica: (env.timeout(seconds) for _ in range(1))

    first = [READY] * ready + [WARM] * warm + [GONE] * places
    replicas = [Replica(number, (number,), [(0.0, first[number])]) for number in range(places)]
    return env, ScaledPool(env, "a", replicas, lasting(START), lambda replica: None, warm=warm,
                           fall_asleep=lasting(SLEEP), wake_up=lasting(WAKE))


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


def carry_out(order, number, env, scaled):
    """Have *env* and the pool *scaled* carry out an *order*; one that is for nobody is to wait."""
    ready, busy = scaled.those(READY), [replica for replica in scaled.replicas if replica.under_way]
    there = scaled.those(STARTING, READY, WARM)
    if order == "scale":
        scaled.scale(number)
    elif order == "enter" and ready:
        scaled.enter(ready[number % len(ready)])
    elif order == "leave" and busy:
        scaled.leave(busy[number % len(busy)])
    elif order == "evict" and there:
        scaled.evict(there[number % len(there)])
    elif order == "update":
        scaled.update(number, 0 if number else 1)
    else:
        env.run(env.now + 1 + number)


@given(st.lists(st.tuples(st.sampled_from(["scale", "enter", "leave", "wait"]), st.integers(0, 6)), max_size=40))
def test_states_follow_each_other_and_wishes_are_met_in_time(orders):
    env, scaled = pool(places=5)
    for order, number in orders:
        carry_out(order, number, env, scaled)
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


def test_a_start_takes_a_warm_one_first_and_another_takes_its_place():
    env, scaled = pool(warm=1)
    scaled.scale(2)
    assert states(scaled) == [READY, STARTING, WARM, GONE]
    env.run(WAKE)
    env.run(WAKE + 0.1)
    assert states(scaled) == [READY, READY, WARM, GONE]


def test_where_none_sleeps_one_that_comes_goes_on_to_serve():
    env, scaled = pool(warm=1)
    scaled.scale(2)
    env.run(START - 1)  # the second one has been coming for so long
    scaled.scale(3)
    assert states(scaled) == [READY, READY, STARTING, WARM]
    env.run(START + 1)
    assert states(scaled) == [READY, READY, READY, WARM]


def test_one_that_is_no_longer_wanted_sleeps_if_too_few_are_warm():
    env, scaled = pool(ready=2, warm=1, places=3)
    scaled.scale(3)
    assert states(scaled) == [READY, READY, STARTING] and scaled.cold == 1
    env.run(WAKE + 1)
    scaled.enter(scaled.replicas[2])
    scaled.scale(1)
    assert states(scaled) == [READY, WARM, DRAINING]
    scaled.leave(scaled.replicas[2])
    assert states(scaled) == [READY, WARM, GONE] and not scaled.cold


def test_one_that_is_wanted_again_falls_asleep_before_it_wakes():
    env, scaled = pool(warm=1, places=2)
    scaled.scale(2)
    env.run(WAKE + 1)
    scaled.scale(1)
    assert states(scaled) == [READY, WARM]
    env.run(env.now + SLEEP / 2)
    scaled.scale(2)
    env.run(env.now + SLEEP / 2 + WAKE - 0.1)
    assert states(scaled) == [READY, STARTING]
    env.run(env.now + 0.2)
    assert states(scaled) == [READY, READY]


def test_a_start_that_is_given_up_for_the_warm_pool_goes_on_where_it_was():
    env, scaled = pool(warm=1, places=2)
    scaled.scale(2)
    env.run(WAKE / 2)
    scaled.scale(1)  # it wakes up all the same, and falls asleep
    scaled.scale(2)
    scaled.scale(1)
    env.run(WAKE + SLEEP / 2)
    scaled.scale(2)
    env.run(2 * WAKE + SLEEP - 0.1)
    assert states(scaled) == [READY, STARTING]
    env.run(env.now + 0.2)
    assert states(scaled) == [READY, READY]
    assert [state for _, state in scaled.replicas[1].life].count(READY) == 1


def test_an_update_makes_warm_ones_anew():
    env, scaled = pool(warm=1, places=3)
    scaled.update(1, 0)
    env.run(3 * START)
    assert states(scaled).count(READY) == states(scaled).count(WARM) == 1
    assert all(any(state == GONE for _, state in replica.life) for replica in scaled.replicas)


ORDERS = st.tuples(st.sampled_from(["scale", "enter", "leave", "wait", "evict", "update"]), st.integers(0, 6))


@given(st.lists(ORDERS, max_size=40), st.integers(0, 3))
def test_warm_ones_are_as_many_as_there_are_places_for(orders, warm):
    env, scaled = pool(places=5, warm=warm)
    for order, number in orders:
        carry_out(order, number, env, scaled)
        assert scaled.cold >= 0 and (not scaled.cold or not scaled.those(GONE))
        assert not scaled.pending or not scaled.those(WARM, GONE)
        assert all(not replica.under_way for replica in scaled.those(STARTING, WARM, GONE))
    for replica in scaled.replicas:
        assert all(after in WITH_WARM[before] for (_, before), (_, after) in pairwise(replica.life))
        while replica.under_way:
            scaled.leave(replica)
    env.run(env.now + 30 * START)
    assert len(scaled.those(READY)) == min(scaled.wanted, 5)
    assert len(scaled.those(WARM)) == min(warm, 5 - len(scaled.those(READY)))


@pytest.mark.parametrize(("life", "gone"), [
    ((), 0.0), (((0.0, "ready"),), 0.0), (((0.0, "gone"), (4.0, "starting"), (6.0, "ready")), 4.0),
    (((0.0, "ready"), (3.0, "draining"), (5.0, "gone"), (20.0, "starting")), 5.0)])
def test_an_engine_has_no_gpus_while_it_is_gone(life, gone):
    assert absent([evolve(ENGINE, life=life)], 10.0) == [gone]
