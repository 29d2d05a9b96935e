"""Rows of experts: what routing leaves them with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.loads import GOLDEN, loads


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


@given(st.integers(1, 3000), st.integers(1, 16), st.data(), st.floats(0, 2), st.integers(1, 32))
def test_the_fullest_rank_has_at_least_its_share_and_at_most_everything(tokens, top_k, data, skew, ranks):
    experts = data.draw(st.integers(max(top_k, ranks), 160))
    spread = loads(tokens, top_k, experts, skew, (), ranks)
    rows = sum(rows * count for rows, count in spread)
    assert round(tokens * top_k / ranks - 0.5) <= rows <= tokens * top_k
    assert sum(count for _, count in spread) <= -(-experts // ranks)
    assert all(0 < rows <= tokens for rows, _ in spread)


@pytest.mark.parametrize("tokens, top_k, experts, ranks, skew", [
    (64, 8, 256, 8, 0.0), (512, 8, 256, 8, 0.0), (1024, 8, 128, 4, 0.0), (64, 8, 256, 64, 0.0), (512, 8, 256, 8, 0.5)])
def test_the_fullest_rank_is_as_full_as_when_routing_token_by_token(tokens, top_k, experts, ranks, skew):
    """Popular experts lie anywhere: in the order of multiples of the golden ratio."""
    random = np.random.default_rng(1)
    popularity = (np.arange(1, experts + 1.0) ** -skew)[np.argsort(np.arange(experts) * GOLDEN % 1, kind="stable")]
    fullest = []
    for _ in range(40):
        scores = np.log(popularity) + random.gumbel(size=(tokens, experts))
        chosen = np.argpartition(-scores, top_k - 1, axis=1)[:, :top_k]
        fullest.append(np.bincount(chosen.ravel(), minlength=experts).reshape(ranks, -1).sum(axis=1).max())
    ours = sum(rows * count for rows, count in loads(tokens, top_k, experts, skew, (), ranks))
    assert ours == pytest.approx(np.mean(fullest), rel=0.04)


def test_measured_shares_of_pairs_are_the_chances_of_experts():
    """Of 4 experts, 2 a token: half of all pairs to the first is every token."""
    ours = np.repeat(*np.array(loads(1000, 2, 4, 0.0, (0.5, 0.25, 0.125, 0.125))).T)
    assert ours == pytest.approx([1000, 500, 250, 250], abs=25)


def test_experts_that_are_never_chosen_have_no_rows():
    assert loads(10, 2, 4, 0.0, (0.5, 0.5, 0.0, 0.0)) == ((10, 2),)


def test_the_more_skewed_the_fuller_the_fullest():
    fullest = [loads(512, 4, 64, skew)[0][0] for skew in (0.0, 0.5, 1.0, 1.5)]
    assert fullest == sorted(fullest)
    assert fullest[-1] > 4 * fullest[0]
