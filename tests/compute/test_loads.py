"""Rows of experts: what routing leaves them with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.loads import loads


@given(st.integers(1, 3000), st.integers(1, 16), st.data(), st.floats(0, 2))
def test_no_row_is_lost_and_no_expert_has_more_than_all_tokens(tokens, top_k, data, skew):
    experts = data.draw(st.integers(top_k, 160))
    spread = loads(tokens, top_k, experts, skew)
    assert sum(rows * count for rows, count in spread) == tokens * top_k
    assert sum(count for _, count in spread) <= experts
    assert all(0 < rows <= tokens for rows, _ in spread)


def test_where_all_experts_are_chosen_all_have_all_tokens():
    assert loads(7, 8, 8) == ((7, 8),)


def test_one_token_reaches_as_many_experts_as_it_chooses():
    assert loads(1, 8, 128) == ((1, 8),)


@pytest.mark.parametrize("tokens, top_k, experts", [(16, 8, 128), (64, 2, 64), (200, 4, 32), (2, 8, 256)])
def test_as_many_experts_are_active_as_one_expects(tokens, top_k, experts):
    """An expert has no rows with probability (1 - top_k / experts) ^ tokens."""
    active = sum(count for _, count in loads(tokens, top_k, experts))
    assert active == pytest.approx(experts * (1 - (1 - top_k / experts) ** tokens), abs=2)


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_loads_are_those_of_routing_token_by_token(skew):
    """Against 300 tokens drawn by the Gumbel trick: 8 different experts each, by popularity."""
    random, popularity = np.random.default_rng(5), np.arange(1, 65.0) ** -skew
    scores = [np.log(popularity) + random.gumbel(size=(300, 64)) for _ in range(60)]
    drawn = [np.sort(np.bincount(np.argsort(-score, axis=1)[:, :8].ravel(), minlength=64))[::-1] for score in scores]
    ours = np.repeat(*np.array(loads(300, 8, 64, skew)).T)
    ours = np.sort(np.concatenate([ours, np.zeros(64 - len(ours))]))[::-1]
    assert ours == pytest.approx(np.mean(drawn, axis=0), abs=12)
    assert ours[0] == pytest.approx(np.mean(drawn, axis=0)[0], rel=0.1)


def test_the_more_skewed_the_fuller_the_fullest():
    fullest = [loads(512, 4, 64, skew)[0][0] for skew in (0.0, 0.5, 1.0, 1.5)]
    assert fullest == sorted(fullest)
    assert fullest[-1] > 4 * fullest[0]
