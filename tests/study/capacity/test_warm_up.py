"""The beginning and the end of a run that do not count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.study.capacity.trial import before_drain, mser
from tests.properties import examples


@pytest.mark.parametrize("warm_up", [0, 50, 100, 200])
@pytest.mark.parametrize("seed", range(5))
def test_a_series_that_starts_low_loses_its_beginning(warm_up, seed):
    """White's own example is such a step: it rises to its level, where it stays but for noise."""
    series = np.random.default_rng(seed).normal(10.0, 1.0, 1000)
    series[:warm_up] -= 10.0
    assert warm_up <= mser(series) <= warm_up + 100


def test_a_series_that_rises_slowly_loses_most_of_the_rise():
    rng = np.random.default_rng(0)
    series = 10 * (1 - np.exp(-np.arange(2000) / 100)) + rng.normal(0, 1, 2000)
    assert 200 <= mser(series) <= 600  # where 86 % and all but 0.3 % of the rise is done
    assert series[mser(series):].mean() == pytest.approx(10, abs=0.1)


@given(st.lists(st.floats(-100, 100), max_size=60))
@examples(60)
def test_no_more_than_half_is_cut(series):
    cut = mser(np.array(series))
    assert cut % 5 == 0
    assert cut <= len(series) / 2


def test_short_series_are_kept():
    assert [mser(np.zeros(count)) for count in (0, 1, 9, 10)] == [0, 0, 0, 0]


def test_requests_that_see_the_load_drain_are_cut():
    """One a second, of which all is known 10 s later."""
    arrival = np.arange(100.0)
    assert before_drain(arrival, arrival + 10) == 90
    assert before_drain(arrival, arrival + 1000) == 50
    assert before_drain(arrival, np.where(arrival % 2, np.nan, arrival + 10)) == 90
    assert before_drain(arrival[:0], arrival[:0]) == 0
    assert before_drain(arrival, np.full(100, np.nan)) == 100
