"""Whose turn it is: a fair share for each tenant, however much the others send."""

import pytest

from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.scheduling.job import Job
from ksim.scheduling.policies.fair_share import FairShare
from ksim.scheduling.policies.orders import Fcfs
from ksim.testing.loop import Loop, loop

SEATS, PROMPT, OUTPUT = 4, 8, 12


def flooded(policy: object, small: tuple[int, int] = (PROMPT, OUTPUT)) -> Loop:
    """All of alice's requests come before the first of bob's."""
    engine = loop(policy=policy, max_num_seqs=SEATS)
    for _ in range(60):
        engine.add(PROMPT, output=OUTPUT, tenant="alice")
    for _ in range(60):
        engine.add(small[0], output=small[1], tenant="bob")
    return engine


def service(engine: Loop, tenant: str) -> float:
    """Weighted tokens that *tenant* has had: 1 for each of a prompt that was admitted, 2 for each that came out."""
    jobs = [job for job in engine.jobs if job.request.tenant == tenant and job.rank >= 0]
    return sum(job.request.prompt + 2 * job.sampled for job in jobs)


def widest_gap(engine: Loop, turns: int) -> float:
    """The largest difference of two tenants' service within so many turns, in which both have requests waiting."""
    gaps = []
    for _ in range(turns):
        engine.turn()
        gaps.append(abs(service(engine, "alice") - service(engine, "bob")))
    assert {job.request.tenant for job in engine.scheduler.waiting} == {"alice", "bob"}
    return max(gaps)


@pytest.mark.parametrize("small", [(PROMPT, OUTPUT), (2, 3), (40, 1), (1, 30)])
def test_two_that_always_have_requests_waiting_are_served_alike(small):
    """The theorem's bound: twice the largest of a prompt's weight and that of a batch's tokens to come."""
    bound = 2 * max(PROMPT, small[0], 2 * SEATS * max(OUTPUT, small[1]))
    assert widest_gap(flooded(FairShare(), small), 60) <= bound


def test_by_arrival_they_are_not():
    bound = 2 * max(PROMPT, 2 * SEATS * OUTPUT)
    engine = flooded(Fcfs())
    for _ in range(100):
        engine.turn()
    assert service(engine, "bob") == 0 and service(engine, "alice") > 3 * bound


def test_one_that_comes_back_has_saved_nothing_up():
    """Bob rests while alice is served; when he is back, they take turns."""
    engine = loop(policy=FairShare(), max_num_seqs=1)
    for _ in range(60):
        engine.add(PROMPT, output=2, tenant="alice")
    for _ in range(60):
        engine.turn()
    begun = len([job for job in engine.jobs if job.rank >= 0])
    for _ in range(20):
        engine.add(PROMPT, output=2, tenant="bob")
    for _ in range(20):
        engine.turn()
    latest = sorted((job for job in engine.jobs if job.rank >= begun), key=lambda job: job.rank)
    assert [job.request.tenant for job in latest].count("bob") in (4, 5, 6)


def test_one_that_comes_when_nobody_waits_starts_from_the_last_to_have_left():
    policy = FairShare()
    engine = loop(policy=policy, max_num_seqs=1)
    engine.add(PROMPT, output=2, tenant="alice")
    engine.turn()
    engine.add(PROMPT, output=2, tenant="bob")
    assert policy.served["bob"] == policy.served["alice"] == PROMPT


def test_among_ones_own_requests_the_first_to_come_is_first_and_one_that_gave_way_before_it():
    engine = loop(policy=FairShare(), blocks=4)
    a, b = engine.add(7, tenant="alice"), engine.add(8, tenant="alice")
    engine.turn()
    engine.turn()
    c = engine.add(8, tenant="alice")
    assert engine.scheduler.waiting and list(engine.scheduler.waiting) == [b, c]
    assert a in engine.scheduler.running


def test_a_prompt_is_paid_for_once():
    policy = FairShare()
    engine = loop(policy=policy, blocks=6, prefix_caching=False)
    jobs = [engine.add(8, output=9, tenant="alice") for _ in range(2)]
    engine.run()
    engine.turn()
    assert sum(job.preemptions for job in jobs) > 0
    assert policy.served["alice"] == 2 * 8 + 2.0 * 2 * 9


def test_those_without_a_tenant_are_served_as_they_come():
    assert [list(engine.turn()) == engine.jobs[:SEATS] for engine in (bare(FairShare()), bare(Fcfs()))] == [True, True]


def bare(policy: object) -> Loop:
    engine = loop(policy=policy, max_num_seqs=SEATS)
    for _ in range(9):
        engine.add(5)
    return engine


def test_a_step_does_not_look_at_all_that_wait():
    engine = loop(policy=FairShare(), max_num_seqs=1)
    for number in range(1000):
        engine.add(5, tenant=f"tenant {number % 3}")
    looked: list[Job] = []
    waiting = engine.scheduler.waiting
    for job in waiting:
        looked.append(job)
        if len(looked) == 3:
            break
    assert [job.number for job in looked] == [0, 3, 6] and len(waiting) == 1000


def test_weights_are_options():
    policy = plugin("scheduling.policies", Choice("fair_share", {"prompt_weight": 0.5, "output_weight": 3.0}))
    assert (policy.prompt_weight, policy.output_weight) == (0.5, 3.0)
