"""Rows of experts: what routing leaves them with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.expert_rows import GOLDEN, Mixture, average_rank, expert_rows, fullest_rank
from ksim.specs.shard import Placement, Routing


@given(st.integers(1, 3000), st.integers(1, 16), st.data(), st.floats(0, 2))
def test_no_row_is_lost_and_no_expert_has_more_than_all_tokens(tokens, top_k, data, skew):
    experts = data.draw(st.integers(top_k, 160))
    spread = expert_rows(tokens, top_k, experts, skew)
    assert sum(rows * count for rows, count in spread) == tokens * top_k
    assert sum(count for _, count in spread) <= experts
    assert all(0 < rows <= tokens for rows, _ in spread)


def test_where_all_experts_are_chosen_all_have_all_tokens():
    assert expert_rows(7, 8, 8) == ((7, 8),)


def test_one_token_reaches_as_many_experts_as_it_chooses():
    assert expert_rows(1, 8, 128) == ((1, 8),)


@pytest.mark.parametrize("tokens, top_k, experts", [(16, 8, 128), (64, 2, 64), (200, 4, 32), (2, 8, 256)])
def test_as_many_experts_are_active_as_one_expects(tokens, top_k, experts):
    """An expert has no rows with probability (1 - top_k / experts) ^ tokens."""
    active = sum(count for _, count in expert_rows(tokens, top_k, experts))
    assert active == pytest.approx(experts * (1 - (1 - top_k / experts) ** tokens), abs=2)


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_loads_are_those_of_routing_token_by_token(skew):
    """Against 300 tokens drawn by the Gumbel trick: 8 different experts each, by popularity."""
    random, popularity = np.random.default_rng(5), np.arange(1, 65.0) ** -skew
    scores = [np.log(popularity) + random.gumbel(size=(300, 64)) for _ in range(60)]
    drawn = [np.sort(np.bincount(np.argsort(-score, axis=1)[:, :8].ravel(), minlength=64))[::-1] for score in scores]
    ours = np.repeat(*np.array(expert_rows(300, 8, 64, skew)).T)
    ours = np.sort(np.concatenate([ours, np.zeros(64 - len(ours))]))[::-1]
    assert ours == pytest.approx(np.mean(drawn, axis=0), abs=12)
    assert ours[0] == pytest.approx(np.mean(drawn, axis=0)[0], rel=0.1)


@given(st.integers(1, 3000), st.integers(1, 16), st.data(), st.floats(0, 2), st.integers(1, 32))
def test_the_fullest_rank_has_at_least_its_share_and_at_most_everything(tokens, top_k, data, skew, ranks):
    experts = data.draw(st.integers(max(top_k, ranks), 160))
    spread = fullest_rank(tokens, Mixture(top_k, experts, Routing(skew), ranks))
    rows = sum(rows * count for rows, count in spread)
    assert tokens * top_k / ranks <= rows <= tokens * top_k
    assert sum(count for _, count in spread) <= -(-experts // ranks)
    assert all(0 < rows <= tokens for rows, _ in spread)


@pytest.mark.parametrize("tokens, top_k, experts, ranks, skew", [
    (64, 8, 256, 8, 0.0), (512, 8, 256, 8, 0.0), (1024, 8, 128, 4, 0.0), (64, 8, 256, 64, 0.0), (512, 8, 256, 8, 0.5)])
def test_the_fullest_rank_is_as_full_as_when_routing_token_by_token(tokens, top_k, experts, ranks, skew):
    """Popular experts lie anywhere: in the order of multiples of the golden ratio."""
    random = np.random.default_rng(1)
    popularity = (np.arange(1, experts + 1.0) ** -skew)[np.argsort(np.arange(experts) * GOLDEN % 1, kind="stable")]
    drawn = []
    for _ in range(40):
        scores = np.log(popularity) + random.gumbel(size=(tokens, experts))
        chosen = np.argpartition(-scores, top_k - 1, axis=1)[:, :top_k]
        drawn.append(np.bincount(chosen.ravel(), minlength=experts).reshape(ranks, -1).sum(axis=1).max())
    ours = sum(rows * count for rows, count in fullest_rank(tokens, Mixture(top_k, experts, Routing(skew), ranks)))
    assert ours == pytest.approx(np.mean(drawn), rel=0.04)


def test_measured_shares_of_pairs_are_the_chances_of_experts():
    """Of 4 experts, 2 a token: half of all pairs to the first is every token."""
    ours = np.repeat(*np.array(expert_rows(1000, 2, 4, 0.0, (0.5, 0.25, 0.125, 0.125))).T)
    assert ours == pytest.approx([1000, 500, 250, 250], abs=25)


def test_experts_that_are_never_chosen_have_no_rows():
    assert expert_rows(10, 2, 4, 0.0, (0.5, 0.5, 0.0, 0.0)) == ((10, 2),)


def test_the_more_skewed_the_fuller_the_fullest():
    largest = [expert_rows(512, 4, 64, skew)[0][0] for skew in (0.0, 0.5, 1.0, 1.5)]
    assert largest == sorted(largest)
    assert largest[-1] > 4 * largest[0]


mixtures = st.builds(Mixture, top_k=st.integers(1, 8), experts=st.integers(8, 96), routing=st.builds(
    Routing, st.floats(0, 2)), ranks=st.integers(1, 8), placement=st.sampled_from([
        Placement(), Placement("round_robin")]))


@given(st.integers(1, 2000), mixtures)
def test_ranks_on_average_share_all_rows_and_the_experts_that_have_some(tokens, mixture):
    """Of all tokens each comes to its experts once, whoever holds them; the fullest has no less than its share."""
    whole = expert_rows(tokens, mixture.top_k, mixture.experts, mixture.routing.exponent)
    mean, most = average_rank(tokens, mixture), fullest_rank(tokens, mixture)
    assert {rows: mixture.ranks * count for rows, count in mean} == pytest.approx(dict(whole), rel=1e-12)
    assert sum(rows * count for rows, count in mean) * mixture.ranks == pytest.approx(tokens * mixture.top_k, rel=1e-12)
    assert sum(rows * count for rows, count in most) >= tokens * mixture.top_k / mixture.ranks
    assert mixture.ranks > 1 or most == mean


@given(st.integers(1, 500), st.integers(1, 4), st.integers(1, 12), st.floats(0, 2), st.sampled_from([8, 16, 32]))
def test_copies_take_no_rows_and_add_none(tokens, ranks, room, skew, experts):
    """*room* slots of each rank are beyond what the experts need."""
    redundant = ranks * room + -experts % ranks
    mixture = Mixture(2, experts, Routing(skew), ranks, Placement("balanced", redundant))
    mean, most = average_rank(tokens, mixture), fullest_rank(tokens, mixture)
    assert sum(rows * count for rows, count in mean) * ranks == pytest.approx(2 * tokens, rel=1e-12)
    assert 2 * tokens / ranks <= sum(rows * count for rows, count in most) <= 2 * tokens
    assert sum(count for _, count in most) <= (experts + redundant) / ranks


@pytest.mark.parametrize("placement", [Placement("round_robin"), Placement("balanced")])
def test_where_all_experts_are_alike_it_is_no_matter_who_holds_them(placement):
    placed, default = Mixture(8, 128, Routing(), 8, placement), Mixture(8, 128, Routing(), 8)
    assert fullest_rank(300, placed) == fullest_rank(300, default)


def test_copies_of_popular_experts_even_out_ranks():
    """Of 512 tokens' 4,096 pairs, 512 a rank: skewed, the fullest has far more; balanced, hardly any."""
    rows = {name: sum(rows * count for rows, count in fullest_rank(512, Mixture(8, 128, Routing(1.2), 8, placement)))
            for name, placement in (("linear", Placement()), ("moved", Placement("balanced")),
                                    ("copied", Placement("balanced", 32)))}
    assert rows["linear"] > 1.3 * rows["moved"] > 1.3 * rows["copied"]
    assert rows["copied"] < 1.1 * 512
