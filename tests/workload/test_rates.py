"""Rates of arrivals that change with time: phases, ramps and sines, tables and spikes."""

import tomllib
from itertools import pairwise

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as some

from ksim.foundation.config import plain, structure
from ksim.foundation.errors import DataError, KsimError
from ksim.foundation.rng import stream
from ksim.scenario.model_card import WorkloadSize
from ksim.scenario.scenario import Scenario
from ksim.workload.arrivals import Arrivals
from ksim.workload.rates import Phase, RateAt, Rates, Spike
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


# Tables of rates, and spikes.


@some.composite
def points(draw):
    """Two to five points from 0 s on, the first of a rate above 0; some lie at one time."""
    gaps = draw(some.lists(LENGTH, min_size=1, max_size=4))
    at = np.cumsum([0.0, *gaps]).tolist()
    return tuple(RateAt(time, draw(RATE if not place else some.just(0.0) | RATE)) for place, time in enumerate(at))


@given(points(), some.booleans())
@examples(100)
def test_a_table_has_as_many_arrivals_as_the_area_under_it(points, steps):
    """Evenly placed arrivals are as many as the integral between any two points, to one; none come after the end."""
    found = np.array(times(Arrivals("constant", points=points, steps=steps)))
    ends = [point.at for point in points[1:]] + ([2 * points[-1].at - points[-2].at] if steps else [])
    for place, end in enumerate(ends):
        begin, rate = points[place].at, points[place].rate
        mean = rate if steps else (rate + points[place + 1].rate) / 2
        inside = np.count_nonzero((found >= begin) & (found < end))
        assert inside == pytest.approx(mean * (end - begin), abs=1.01)
    assert found[-1] <= ends[-1]


@given(points(), some.booleans(), RATE)
@examples(60)
def test_a_table_is_scaled_to_its_mean_rate(points, steps, rate):
    made = Arrivals("constant", points=points, steps=steps, rate=rate)
    assert made.rates.mean == pytest.approx(rate) == made.mean
    assert made.expected == pytest.approx(1 + rate * made.rates.length)
    assert len(times(made)) == pytest.approx(made.expected, abs=1.01)


@given(points=points(), steps=some.booleans())
@examples(40)
def test_a_file_of_rates_is_the_table_in_it(points, steps, tmp_path_factory):
    path = tmp_path_factory.mktemp("rates") / "day.csv"
    path.write_text("time,rate\n" + "".join(f"{point.at!r},{point.rate!r}\n" for point in points))
    assert times(Arrivals(path=path, steps=steps)) == times(Arrivals(points=points, steps=steps))


def test_a_point_may_be_a_jump():
    jump = (RateAt(0.0, 2.0), RateAt(1.0, 2.0), RateAt(1.0, 0.0), RateAt(3.0, 0.0), RateAt(3.0, 4.0), RateAt(4.0, 4.0))
    assert times(Arrivals("constant", points=jump)) == [0, 0.5, 3, 3.25, 3.5, 3.75]


def test_a_week_of_hours_comes_again():
    hours = tuple(RateAt(3600.0 * hour, 1.0 + (hour % 24 > 8)) for hour in range(168))
    week = Arrivals("constant", points=hours, steps=True, repeat=True, rate=0.02)
    assert week.rates.length == 7 * 86400
    found = np.array(times(week, 30_000))
    assert np.diff(np.searchsorted(found, [0, 604800, 1209600])) == pytest.approx([0.02 * 604800] * 2, abs=1.01)


@given(points(), some.lists(some.tuples(some.floats(0, 0.99), RATE, LENGTH), min_size=1, max_size=3),
       some.sampled_from(["constant", "poisson"]))
@examples(60)
def test_spikes_come_on_top_and_leave_all_others_in_place(points, drawn, process):
    bare = Arrivals(process, points=points)
    spikes = tuple(Spike(share * bare.rates.length, rate, length) for share, rate, length in drawn)
    found, usual = times(evolve(bare, spikes=spikes)), times(bare)
    rest = list(found)
    for time in usual:
        rest.remove(time)
    assert found == sorted(found) and found[0] == 0
    assert all(any(spike.at <= time <= spike.at + spike.for_ for spike in spikes) for time in rest)
    if process == "constant":
        assert len(rest) == pytest.approx(sum(spike.rate * spike.for_ for spike in spikes), abs=len(spikes) + 0.01)
    assert times(evolve(bare, spikes=spikes), 5) == found[:5]


def test_spikes_stand_on_a_plain_rate_too():
    rush = Arrivals("constant", 1.0, spikes=(Spike(3.0, 10.0, 0.5),))
    found = times(rush, 12)
    assert [time for time in found if time != int(time)] == pytest.approx([3.1, 3.2, 3.3, 3.4])


@pytest.mark.parametrize(("said", "message"), [
    ({"points": [{"at": 0, "rate": 1}]}, "points has no times to go between; give two points or more"),
    ({"points": [{"at": "1 s", "rate": 1}, {"at": "2 s", "rate": 1}]}, "the first at 0 s"),
    ({"points": [{"at": 0, "rate": 1}, {"at": "5 s", "rate": 1}, {"at": "4 s", "rate": 1}]},
     r"points\[2\] is at 4 s, and the one before it at 5 s; put them in order"),
    ({"points": [{"at": 0, "rate": 0}, {"at": "5 s", "rate": 0}, {"at": "6 s", "rate": 1}]}, "begins with a rate of 0"),
    ({"points": [{"at": 0, "rate": -1}]}, r"points\[0\]: 'rate' must be >= 0"),
    ({"points": [{"at": 5, "rate": 1}]}, r"points\[0\].at: .*has no unit"),
    ({"rate": 1, "steps": True}, "steps are of points or a path"),
    ({"points": [{"at": 0, "rate": 1}, {"at": "5 s", "rate": 1}], "phases": [{"rate": 1}]}, "leave out points"),
    ({"points": [{"at": 0, "rate": 1}, {"at": "5 s", "rate": 1}], "exact": True}, "leave out exact"),
    ({"points": [{"at": 0, "rate": 1}, {"at": "5 s", "rate": 1}], "repeat": True}, "arrivals.points have no end"),
    ({"points": [{"at": 0, "rate": 1}, {"at": "5 s", "rate": 1}],
      "spikes": [{"at": "5 s", "rate": 1, "for": "1 s"}]}, r"spikes\[0\] is at 5 s, and arrivals end after 5 s"),
    ({"rate": 1, "spikes": [{"at": 0, "rate": 0, "for": "1 s"}]}, r"spikes\[0\]: 'rate' must be > 0"),
    ({"rate": 1, "spikes": [{"at": 0, "rate": 1}]}, r"spikes\[0\].for: is missing"),
    ({"process": "burst", "spikes": [{"at": 0, "rate": 1, "for": "1 s"}]}, "leave out the burst"),
    ({"share": 1.0, "rate": 2.0}, "leave out rate"),
    ({"share": 0.0}, "arrivals: 'share' must be >= 1e-09"),
])
def test_faulty_tables_are_an_error_by_key(said, message):
    with pytest.raises(KsimError, match=message):
        structure(Synthetic, {"arrivals": said, **LENGTHS})


@pytest.mark.parametrize(("text", "message"), [
    ("time,rate\n0,1\n5,x\n", r"rates.csv:3: rate is 'x'; expected requests/s, from 0 to 1e\+09"),
    ("time,rate\n0,1\n5,-1\n", "rates.csv:3: rate is '-1'"),
    ("time,rate\n0,1\n5,1\n4,1\n", "rates.csv:4: is at 4 s, and the one before it at 5 s"),
    ("time,rate\n0,1\n-5,1\n", "rates.csv:3: time is '-5'"),
    ("time,rate\n0,1\n5\n", "rates.csv:3: has 1 fields, but the header has 2"),
    ("time,requests\n0,1\n", "rates.csv:1: has no column 'rate'"),
    ("time,rate\n0,1\n", "rates.csv: has no times to go between"),
    ("", "rates.csv: is empty"),
])
def test_a_faulty_file_of_rates_is_an_error_by_file_and_line(text, message, tmp_path):
    (tmp_path / "rates.csv").write_text(text)
    load = structure(Synthetic, {"arrivals": {"path": str(tmp_path / "rates.csv")}, **LENGTHS})
    with pytest.raises(DataError, match=message):
        next(load.requests(0))


def test_a_file_of_rates_is_relative_to_its_scenario_and_read_when_requests_are(tmp_path):
    table = {"model": "llama-3.1-8b", "gpu": "h200", "workload": {"synthetic": {
        "arrivals": {"path": "rates.csv", "rate": 9.0}, **LENGTHS}}}
    made = Scenario.of(table, folder=tmp_path)
    with pytest.raises(DataError, match="No such file"):
        next(made.workload.requests(0))
    (tmp_path / "rates.csv").write_text("time,rate\n0,1\n4,3\n")
    assert len([*made.workload.requests(0)]) == pytest.approx(36, abs=20)
    assert Scenario.of(tomllib.loads(made.to_toml())) == made
