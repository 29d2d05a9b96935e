"""Rates of arrivals that change with time: phases, ramps and sines."""

from itertools import pairwise

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as some

from ksim.foundation.config import plain, structure
from ksim.foundation.rng import stream
from ksim.scenario.model_card import WorkloadSize
from ksim.scenario.scenario import Scenario
from ksim.workload.arrivals import Arrivals
from ksim.workload.rates import Phase, Rates
from ksim.workload.synthetic import Synthetic
from tests.properties import examples

LENGTHS = {"prompt": {"kind": "fixed", "value": 9}, "output": {"kind": "fixed", "value": 2}}
RATE, LENGTH = some.floats(0.5, 200), some.floats(0.1, 30)


@some.composite
def phases(draw):
    """One to four phases, some of them without arrivals, the first not."""
    made = []
    for number in range(draw(some.integers(1, 4))):
        rate, length = draw(RATE), draw(LENGTH)
        kind = draw(some.sampled_from(["constant", "ramp", "sine", *(["none"] if number else [])]))
        more = {"ramp": {"to": draw(some.just(0.0) | RATE)}, "none": {}, "constant": {},
                "sine": {"amplitude": rate * draw(some.floats(0.01, 1)), "period": draw(LENGTH)}}[kind]
        made.append(Phase(0.0 if kind == "none" else rate, length, **more))
    return tuple(made)


def times(arrivals, count=100_000):
    return list(arrivals.times(stream(0, "test"), count))


def expected(phases, at):
    """The integral of the rate up to each time, phase by phase."""
    total = np.zeros(len(at))
    begin = 0.0
    for phase in phases:
        total += phase.integral(np.clip(at - begin, 0, phase.for_))
        begin += phase.for_
    return total


@given(phases())
@examples(100)
def test_every_phase_has_as_many_arrivals_as_its_rate_comes_to(phases):
    """Evenly placed arrivals are as many as the integral of the rate, to one, which an independent sum agrees with."""
    found, begin = np.array(times(Arrivals("constant", phases=phases))), 0.0
    for phase in phases:
        grid = (np.arange(20_000) + 0.5) / 20_000 * phase.for_
        ramp = 0.0 if phase.to is None else (phase.to - phase.rate) * grid / phase.for_
        wave = phase.amplitude * np.sin(2 * np.pi * grid / phase.period) if phase.period else 0.0
        mean = float(np.mean(phase.rate + ramp + wave)) * phase.for_
        inside = np.count_nonzero((found >= begin) & (found < begin + phase.for_))
        assert inside == pytest.approx(mean, abs=1.001 + 1e-3 * mean)
        begin += phase.for_
    assert found[-1] <= begin


@given(phases(), some.sampled_from([{"process": "poisson"}, {"process": "gamma", "burstiness": 0.4}]))
@examples(100)
def test_arrivals_are_those_of_a_rate_of_one_at_changed_times(phases, process):
    """The integral of the rate up to each arrival is the arrival at a rate of one."""
    found = times(Arrivals(phases=(*phases, Phase(3.0, 5.0)), **process))
    ones = times(Arrivals(rate=1.0, **process), len(found))
    assert found[0] == 0 and all(earlier <= later for earlier, later in pairwise(found))
    assert expected((*phases, Phase(3.0, 5.0)), np.array(found)) == pytest.approx(ones, rel=1e-9, abs=1e-6)


@given(RATE, LENGTH, some.sampled_from([{"process": "poisson"}, {"process": "gamma", "burstiness": 2.0},
                                       {"process": "constant"}]))
@examples(60)
def test_one_phase_is_the_plain_rate_to_the_byte(rate, length, process):
    usual = times(Arrivals(rate=rate, **process), 300)
    assert times(Arrivals(phases=(Phase(rate),), **process), 300) == usual
    assert times(Arrivals(phases=(Phase(rate, length),), repeat=True, **process), 300) == usual
    assert times(Arrivals(phases=(Phase(rate, length, to=rate),), **process), 300) == [t for t in usual if t < length]


@given(phases(), some.lists(some.floats(0, 0.999), min_size=1, max_size=9))
@examples(60)
def test_phases_that_repeat_do_so(phases, shares):
    again = Rates(phases, repeat=True)
    at = np.sort(np.array(shares)) * again.expected
    assert again.times(at) == pytest.approx(Rates(phases).times(at))
    # A sum may fall on the other side of a phase without arrivals, so the integral is compared.
    later = again.times(at + 3 * again.expected) - 3 * again.length
    assert expected(phases, later) == pytest.approx(at, rel=1e-6, abs=1e-6)


def test_a_time_between_two_phases_belongs_to_the_next():
    """Nobody arrives while the rate is 0."""
    rest = (Phase(2.0, 1.0), Phase(0.0, 10.0), Phase(2.0, 1.0))
    assert times(Arrivals("constant", phases=rest)) == [0, 0.5, 11, 11.5]


def test_a_list_stands_for_the_table_of_its_phases():
    said = [{"rate": 15, "for": "90 s"}, {"rate": 2, "for": "90 s"}]
    load = structure(Synthetic, {"arrivals": said, **LENGTHS})
    assert load == structure(Synthetic, {"arrivals": {"phases": said}, **LENGTHS})
    assert structure(Synthetic, plain(load)) == load
    assert load.arrivals.phases == (Phase(15.0, 90.0), Phase(2.0, 90.0))


def test_phases_say_how_many_requests_there_are():
    phases = [{"rate": 50, "for": "2 s"}, {"rate": 0, "for": "5 s"}, {"rate": 100, "for": "1 s"}]
    table = {"arrivals": phases, **LENGTHS}
    arrivals = [request.arrival for request in structure(Synthetic, table).requests(0)]
    assert sum(arrival < 2 for arrival in arrivals) == pytest.approx(100, abs=30)
    assert sum(arrival >= 7 for arrival in arrivals) == pytest.approx(100, abs=30)
    assert len([*structure(Synthetic, {**table, "count": 120}).requests(0)]) == 120
    size = WorkloadSize.of(Scenario.of({"model": "llama-3.1-8b", "gpu": "h200", "workload": {"synthetic": table}}))
    assert (size.requests, size.tokens) == (201, 402)
    forever = structure(Synthetic, {**table, "count": 5000, "arrivals": {"phases": phases, "repeat": True}})
    assert [request.arrival for request in forever.requests(0)][-1] == pytest.approx(25 * 8, rel=0.05)


def test_sessions_arrive_in_phases_too():
    turns = {"turns": {"kind": "fixed", "value": 3}}
    load = structure(Synthetic, {"arrivals": [{"rate": 20, "for": "1 s"}], "sessions": turns, **LENGTHS})
    requests = [*load.requests(0)]
    assert len(requests) == 3 * len({request.session for request in requests})
    table = {"model": "llama-3.1-8b", "gpu": "h200", "workload": {"synthetic": plain(load)}}
    assert WorkloadSize.of(Scenario.of(table)).requests == 63


def test_a_daily_sine_has_its_peak_after_a_quarter_of_the_day():
    day = Arrivals(phases=(Phase(0.5, 86400.0, amplitude=0.4, period=86400.0),))
    hours = np.bincount((np.array(times(day)) // 3600).astype(int), minlength=24)
    assert hours[5:7].mean() == pytest.approx(0.9 * 3600, rel=0.05)
    assert hours[17:19].mean() == pytest.approx(0.1 * 3600, rel=0.15)
    assert evolve(day, process="constant").expected == pytest.approx(1 + 0.5 * 86400)
