"""What makes a deployment differ: causes that are planted are found."""

import numpy as np
import pytest
from attrs import evolve

from ksim.validation.benchmarks.causes import Pairs, in_flight, of_requests
from tests.validation.benchmarks.fabricate import mixed, run


def causes(planted, served):
    """The causes found where *planted* changes what was measured of *served*."""
    measured = [planted(number, one) for number, one in enumerate(served)]
    measured = [evolve(one, queue=None) if one.queue == served[number].queue else one
                for number, one in enumerate(measured)]
    return list(of_requests(Pairs(tuple(measured), tuple(served), in_flight(measured))))


def later(one, seconds):
    return evolve(one, ttft=one.ttft + seconds, e2e=one.e2e + seconds)


def slower(one, factor):
    gaps = tuple(factor * gap for gap in one.gaps)
    return evolve(one, gaps=gaps, e2e=one.ttft + sum(gaps))


SPARSE, DENSE = run(mixed(40), gap=0.08), run(mixed(40), gap=0.002)


def test_nothing_differs_in_a_run_of_ours():
    assert not causes(lambda number, one: one, SPARSE)


def test_a_first_request_that_warms_up():
    (found,) = causes(lambda number, one: later(one, 0.9) if not number else one, SPARSE)
    assert found.name == "slow start" and found.seconds == pytest.approx(0.9 / 40, rel=0.05)


def test_a_client_that_adds_to_every_request():
    (found, *_) = causes(lambda number, one: later(one, 0.03), SPARSE)
    assert found.name == "client or network" and found.seconds == pytest.approx(0.03, rel=0.05)


def test_a_slower_prefill():
    (found, *_) = causes(lambda number, one: later(one, 0.5 * (one.ttft - one.queue)), SPARSE)
    own = np.mean([one.ttft - one.queue for one in SPARSE])
    assert found.name == "prefill" and found.seconds == pytest.approx(0.5 * own, rel=0.05)


def test_a_longer_queue():
    (found, *_) = causes(lambda number, one: later(one, 0.8 * one.queue), DENSE)
    own = np.mean([one.queue for one in DENSE])
    assert found.name == "queue" and found.seconds == pytest.approx(0.8 * own, rel=0.05)


def test_a_few_requests_that_something_held_up():
    (found, *_) = causes(lambda number, one: later(one, 0.3 if number in (11, 25) else 0.0), SPARSE)
    assert found.name == "single requests" and found.evidence.startswith("2 of 40 requests are +300 ms")
    assert found.seconds == pytest.approx(0.6 / 40, rel=0.05)


def test_noise_is_no_cause_of_its_own():
    noise = np.random.default_rng(1).exponential(0.004, len(SPARSE))
    names = [one.name for one in causes(lambda number, one: later(one, 0.02 + noise[number]), SPARSE)]
    assert names[0] == "client or network" and not {"prefill", "queue"} & {*names}


def test_a_queue_that_the_server_measured():
    def planted(number, one):
        return evolve(later(one, 0.05), queue=one.queue + 0.05)

    (found,) = causes(planted, SPARSE)
    assert found.name == "queue" and found.seconds == pytest.approx(0.05)


def test_equal_prompts_cannot_tell_the_prefill_from_the_client():
    (found, *_) = causes(lambda number, one: later(one, 0.03), run(((300, 5),) * 20, gap=0.08))
    assert found.name == "prefill or client" and "do not tell a slower prefill" in found.evidence


def test_a_slower_decode_step():
    (found,) = causes(lambda number, one: slower(one, 1.5), SPARSE)
    assert ((found.name, found.metric) == ("decode step", "itl") and "alike at any load" in found.evidence) or (
        "the load is the same" in found.evidence)


def test_a_step_that_slows_down_with_the_batch():
    many = in_flight(DENSE)
    found = causes(lambda number, one: slower(one, 1 + 0.05 * many[number]), DENSE)
    assert any(one.name == "decode step" and "changes with the batch" in one.evidence for one in found)


def test_pauses_between_tokens():
    def planted(number, one):
        gaps = tuple(gap + (0.2 if number % 5 == 0 and place == 1 else 0) for place, gap in enumerate(one.gaps))
        return evolve(one, gaps=gaps, e2e=one.ttft + sum(gaps))

    (found, *_) = causes(planted, SPARSE)
    assert found.name == "stalls"


def test_a_result_without_gaps_still_says_that_tokens_are_slower():
    (found,) = causes(lambda number, one: evolve(slower(one, 1.5), gaps=()), SPARSE)
    assert (found.name, found.metric) == ("decode step", "tpot")
