"""Intervals hold what they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.oracles.efficiency.models import FEWEST, Spread
from tests.properties import examples


@examples(30)
@given(st.integers(0, 10**6), st.sampled_from([0.02, 0.2]), st.floats(0, 4))
def test_nine_of_ten_new_residuals_lie_inside(seed, scale, skew):
    random = np.random.default_rng(seed)

    def drawn(count):
        inputs = random.uniform(0, 1, (count, 2))
        wide = scale * (1 + skew * (inputs[:, 1] > 0.5))  # one half errs more than the other
        return inputs, random.normal(0, 1, count) * wide

    inputs, residuals = drawn(4000)
    spread = Spread.of(residuals, inputs, column=1)
    fresh, new = drawn(4000)
    low, high = spread.interval(fresh, np.zeros(len(fresh)))
    for half in (fresh[:, 1] <= 0.5, fresh[:, 1] > 0.5):
        assert ((low <= new) & (new <= high))[half].mean() == pytest.approx(0.9, abs=0.05)


def test_intervals_are_as_wide_as_errors_are_where_they_are():
    inputs = np.linspace(0, 1, 4000)[:, None]
    residuals = np.random.default_rng(1).normal(0, 1, 4000) * (0.01 + inputs[:, 0])
    low, high = Spread.of(residuals, inputs, column=0).interval(np.array([[0.05], [0.95]]), np.zeros(2))
    assert high[1] - low[1] > 4 * (high[0] - low[0])


def test_intervals_widen_outside_of_the_points():
    spread = Spread.of(np.linspace(-0.1, 0.2, 500), np.zeros((500, 1)), column=0)
    low, high = spread.interval(np.zeros((3, 1)), np.array([0.0, 0.25, 1.0]))
    assert (np.diff(low) < 0).all() and (np.diff(high) > 0).all()
    assert high[1] == pytest.approx(2 * high[0])


def test_small_cells_take_the_spread_of_all_points():
    inputs = np.concatenate([np.zeros(500), np.ones(FEWEST - 1)])[:, None]
    residuals = np.concatenate([np.linspace(-1, 1, 500), np.zeros(FEWEST - 1)])
    low, high = Spread.of(residuals, inputs, column=0).interval(np.array([[1.0]]), np.zeros(1))
    assert high[0] - low[0] > 1.5


def test_the_estimate_itself_is_always_inside():
    low, high = Spread.of(np.linspace(0.2, 0.3, 200), np.zeros((200, 1)), 0).interval(np.zeros((1, 1)), np.zeros(1))
    assert low[0] <= 0 <= high[0]
