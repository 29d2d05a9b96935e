"""Intervals of means, and of the rate at which a curve crosses what is allowed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.study.capacity.search import RatePoint
from ksim.study.capacity.targets import UNKNOWN, Curves, Target, crossing, of_mean
from ksim.study.capacity.trial import Criteria, Observation, TargetSample
from ksim.study.students_t import student
from tests.properties import examples


@pytest.mark.parametrize(("freedom", "quantile"), [(2, 4.303), (3, 3.182), (5, 2.571), (11, 2.201), (1000, 1.962)])
def test_student(freedom, quantile):
    """As tables have it."""
    assert student(0.975, freedom) == pytest.approx(quantile, rel=0.01)
    assert student(0.025, freedom) == pytest.approx(-quantile, rel=0.01)


def test_symmetric_values_have_students_interval():
    interval = of_mean(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), 0.95)
    assert (interval.low + interval.high) / 2 == pytest.approx(3)
    assert interval.high - 3 == pytest.approx(2.776 * np.sqrt(2.5 / 5), rel=1e-3)


def test_two_values_say_nothing():
    assert of_mean(np.array([1.0, 2.0]), 0.95) == UNKNOWN


def test_skewed_values_have_a_longer_upper_end():
    interval = of_mean(np.array([0.0, 0.0, 0.0, 0.0, 10.0]), 0.95)
    assert interval.high - 2 > 1.5 * (2 - interval.low)


def test_skewed_means_are_covered():
    """Eight values of an exponential distribution, of which Student's t alone covers 91 of 100 means."""
    rng = np.random.default_rng(0)
    covered = [1.0 in of_mean(rng.exponential(1.0, 8), 0.95) for _ in range(1000)]
    assert np.mean(covered) > 0.93


def test_what_a_trace_leaves_open_does_not_shrink():
    values = np.random.default_rng(0).normal(0, 1, 100)
    wide, narrow = of_mean(values, 0.95, own_spread=1.0), of_mean(values, 0.95)
    assert wide.high - wide.low == pytest.approx(np.sqrt(101) * (narrow.high - narrow.low), rel=1e-6)


def test_a_curve_crosses_where_it_is_drawn():
    assert crossing([1.0, 4.0], [-1.0, 1.0]) == pytest.approx(2.0)
    assert crossing([1.0, 2.0], [-1.0, -0.5]) is None
    assert crossing([1.0, 2.0], [0.5, 1.0]) is None
    assert crossing([1.0, 2.0, 4.0, 8.0], [-2.0, -1.0, -1.5, 1.0]) == pytest.approx(4 * 2**0.5)  # it never falls


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=8), st.floats(1.5, 6))
@examples(80)
def test_the_interval_of_a_curve_holds_where_its_mean_crosses(own, slope):
    """Each replication has its own multiple at a rate of 1, and all rise alike."""
    rates = [0.5, 0.7, 1.0, 1.4, 2.0]
    multiples = np.array([[np.array(own) * rate**slope] for rate in rates])
    curves = Curves(rates, multiples, np.zeros(5, bool))
    rate = curves.crossing()
    if rate is not None:
        interval = curves.interval(0.95)
        assert interval.low * (1 - 1e-9) <= rate <= interval.high * (1 + 1e-9)
        assert rate == pytest.approx(np.mean(own)**(-1 / slope), rel=1e-6)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
@examples(40)
def test_no_end_of_an_interval_is_beyond_what_is_possible(goods):
    """Goodput is at most the rate, shares are at most 1, and neither is below 0, however few replications differ."""
    target, rate, count = Target.parse("ttft:p99:1s"), 3.0, 20
    seen = []
    for replication, good in enumerate(goods):
        within = np.arange(count) < good
        sample = TargetSample((~within).astype(float), np.ones(count), np.where(within, 0.5, 9.0), count)
        seen.append(Observation(rate, replication, samples=[sample], good=within))
    point = RatePoint.of(Criteria((target,)), seen)
    for (value, interval), most in ((point.goodput, rate), (point.attainment[target], 1.0),
                                    (point.values[target], np.inf)):
        assert 0 <= interval.low <= value + 1e-12 and value - 1e-12 <= interval.high <= most


@pytest.mark.parametrize(("missed", "verdicts"), [(0.0003, {True}), (0.05, {False}), (0.01, {True, False, None})])
def test_a_single_replication_is_sure_of_what_is_far_from_the_limit(missed, verdicts):
    """Of 2,000 requests that miss a p99 independently; at the limit itself, it is hardly ever sure."""
    target, count, rng = Target.parse("ttft:p99:1s"), 2000, np.random.default_rng(1)
    said = []
    for _ in range(60):
        misses = rng.random(count) < missed
        sample = TargetSample(misses.astype(float), np.ones(count), np.where(misses, 9.0, 0.5), count)
        said.append(RatePoint.of(Criteria((target,)), [Observation(3.0, 0, samples=[sample], good=~misses)]).meets)
    assert set(said) <= verdicts
    assert said.count(None) > 0.8 * len(said) if missed == 0.01 else None not in said
