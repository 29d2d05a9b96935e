"""Rows of experts that are drawn: what every draw keeps, what draws are on average, and EPLB."""

from itertools import product
from math import factorial, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.expert_draws import Drawn, ExpertDraws, first_placement, mixture_layers, moved
from ksim.compute.expert_rows import Mixture, average_rank, chances_of, fullness, placed
from ksim.foundation.errors import ConfigError
from ksim.specs.shard import Placement, Routing, Shard

routings = st.builds(Routing, st.sampled_from([0.0, 0.5, 1.5]), deviation=st.sampled_from([0.0, 0.4]),
                     step_correlation=st.sampled_from([0.0, 0.9, 1.0]), layer_correlation=st.sampled_from([0.0, 0.7]))


def mixtures(draw):
    experts = draw(st.integers(1, 40))
    return Mixture(draw(st.integers(1, experts)), experts, draw(routings), draw(st.integers(1, 12)),
                   draw(st.sampled_from([Placement(), Placement("round_robin")])))


@given(st.composite(mixtures)(), st.integers(0, 3000), st.integers(0, 9))
def test_no_row_is_lost_and_no_token_goes_to_an_expert_twice(mixture, tokens, seed):
    draws = ExpertDraws(mixture, [2, 3, 7], seed)
    for drawn in (draws.draw(tokens), draws.draw(tokens)):
        assert drawn.experts.shape == (3, mixture.experts) and drawn.rows.shape == (3, mixture.ranks)
        assert drawn.experts.min() >= 0 and drawn.experts.max() <= tokens
        assert (drawn.experts.sum(axis=1) == tokens * mixture.top_k).all()
        assert (drawn.rows.sum(axis=1) == tokens * mixture.top_k).all()
        assert (drawn.active.sum(axis=1) == (drawn.experts > 0).sum(axis=1)).all()


@pytest.mark.parametrize("shares", [(0.3, 0.3, 0.2, 0.1, 0.1, 0.0), (9.0, 3.0, 2.0, 1.0, 1.0, 1.0)])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_rows_of_an_expert_are_binomial_with_its_chance(shares, top_k):
    """Mean, spread and emptiness over 4,000 layers, each within five standard errors."""
    routing, tokens, layers = Routing(shares=(shares,)), 5, 4_000
    rows = ExpertDraws(Mixture(top_k, 6, routing), range(layers), 3).draw(tokens).experts
    chances = chances_of(top_k, 6, 0.0, routing.shares[0])
    spread = tokens * chances * (1 - chances)
    assert np.abs(rows.mean(axis=0) - tokens * chances).max() <= 5 * (spread.max() / layers) ** 0.5
    empty = (1 - chances) ** tokens
    assert np.abs((rows == 0).mean(axis=0) - empty).max() <= 5 * (0.25 / layers) ** 0.5
    assert rows.var(axis=0) == pytest.approx(spread, rel=0.06, abs=1e-12)


def expected_fullest(ranks: int, tokens: int) -> float:
    """The mean of the largest of *ranks* counts of *tokens* that go anywhere, added up over all ways to go."""
    return sum(max(counts) * factorial(tokens) / prod(map(factorial, counts))
               for counts in product(range(tokens + 1), repeat=ranks) if sum(counts) == tokens) / ranks**tokens


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("tokens", [1, 2, 5, 12])
def test_the_fullest_of_a_few_ranks_is_as_full_as_the_sum_over_all_ways(ranks, tokens):
    fullest = ExpertDraws(Mixture(1, ranks, Routing(), ranks), range(4_000), 1).draw(tokens).rows.max(axis=1)
    error = max(fullest.std() / len(fullest) ** 0.5, 1e-12)
    assert abs(fullest.mean() - expected_fullest(ranks, tokens)) <= 4 * error


@pytest.mark.parametrize("tokens, ranks, skew", [(1, 8, 0.0), (8, 32, 0.0), (64, 8, 0.0), (64, 32, 0.5)])
def test_the_fullest_rank_is_as_full_as_when_routing_token_by_token(tokens, ranks, skew):
    """Against tokens that choose by the Gumbel trick, which experts are popular being drawn anew each time."""
    random, popularity = np.random.default_rng(2), np.log(np.arange(1, 257.0) ** -skew)
    found = []
    for _ in range(300):
        scores = random.permutation(popularity) + random.gumbel(size=(tokens, 256))
        chosen = np.argpartition(-scores, 7, axis=1)[:, :8]
        found.append(np.bincount(chosen.ravel() // (256 // ranks), minlength=ranks).max())
    drawn = ExpertDraws(Mixture(8, 256, Routing(skew), ranks), range(2000), 5).draw(tokens).rows.max(axis=1)
    error = (np.var(found) / len(found) + drawn.var() / len(drawn)) ** 0.5
    assert abs(drawn.mean() - np.mean(found)) <= 4 * error


@pytest.mark.parametrize("tokens, skew", [(64, 0.0), (512, 0.5)])
def test_a_thousand_steps_have_the_rows_and_active_experts_that_one_expects(tokens, skew):
    """Within 1 % of what expert_rows expects, or of the experts' chances to have rows."""
    mixture = Mixture(8, 128, Routing(skew), 8)
    draws = ExpertDraws(mixture, range(4), 2)
    steps = [draws.draw(tokens) for _ in range(1000)]
    rows = np.mean([drawn.rows for drawn in steps])
    active = np.mean([drawn.active for drawn in steps])
    expected = average_rank(tokens, mixture)
    assert rows == pytest.approx(sum(rows * count for rows, count in expected), rel=1e-12)
    chances = chances_of(8, 128, skew, ())
    assert active * 8 == pytest.approx((1 - (1 - chances) ** tokens).sum(), rel=0.002)
    assert active == pytest.approx(sum(count for _, count in expected), rel=0.01)


STEEP = Routing(1.0)


def rows_of(seed=1, layers=(0, 1, 2), routing=STEEP, tokens=300, steps=3):
    draws = ExpertDraws(Mixture(2, 32, routing, 4), layers, seed)
    return [draws.draw(tokens).experts.tolist() for _ in range(steps)]


def test_draws_can_be_repeated_and_differ_by_seed_and_step():
    first = rows_of()
    assert first == rows_of() != rows_of(seed=2)
    assert len({str(step) for step in first}) == 3
    draws = ExpertDraws(Mixture(2, 32, Routing(1.0), 4), (0, 1, 2), 1)
    draws.draw(17)
    assert draws.draw(300).experts.tolist() == first[1]  # whatever the step before had


def test_each_layer_has_an_order_of_its_own_which_stages_do_not_change():
    def popular(layers, **moving):
        rows = rows_of(layers=layers, routing=Routing(2.0, **moving), tokens=100_000, steps=1)[0]
        return [int(np.argmax(row)) for row in rows]

    whole = popular(range(12))
    assert len({*whole}) > 4
    assert popular(range(6, 12)) == whole[6:]
    assert len({*popular(range(12), layer_correlation=1.0)}) == 1


def test_popularity_moves_as_it_is_correlated():
    """Logarithms of rows, of so many tokens that their noise is small."""
    routing = Routing(deviation=0.5, step_correlation=0.8, layer_correlation=0.6)
    draws = ExpertDraws(Mixture(1, 512, routing), range(8), 3)
    logs = np.log([draws.draw(10**7).experts for _ in range(6)])
    assert logs.std() == pytest.approx(0.5, rel=0.05)
    logs = logs - logs.mean(axis=2, keepdims=True)
    steps, layers = (np.corrcoef(one.ravel(), other.ravel())[0, 1] for one, other in (
        (logs[1:], logs[:-1]), (logs[:, 1:], logs[:, :-1])))
    assert (steps, layers) == (pytest.approx(0.8, abs=0.04), pytest.approx(0.6, abs=0.04))


def test_vllm_lays_experts_in_their_order_and_copies_of_the_first_behind_them():
    held = first_placement(6, 4, Placement("balanced", 2))
    assert [part.tolist() for part in held] == [[0, 1], [2, 3], [4, 5], [0, 1]]


@st.composite
def balanced(draw):
    ranks, room = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    experts = draw(st.integers(max(2, room), ranks * room))
    return Mixture(draw(st.integers(1, min(3, experts))), experts, Routing(draw(st.sampled_from([0.0, 0.8, 2.0]))),
                   ranks, Placement("balanced", ranks * room - experts))


@given(balanced(), st.integers(1, 200), st.integers(0, 9))
def test_after_a_rearrangement_no_rank_is_fuller_and_all_experts_are_there(mixture, tokens, seed):
    draws = ExpertDraws(mixture, [0, 4], seed, window=3, interval=4, expert_bytes=[10.0, 1.0])
    before = [draws.held(layer) for layer in range(2)]
    for _ in range(2):
        loads = sum(draws.draw(tokens).experts for _ in range(3)).astype(float)
        old, moves = [draws.held(layer) for layer in range(2)], draws.rebalance()
        new = [draws.held(layer) for layer in range(2)]
        fullest = [[float(fullness(load, held).max()) for load, held in zip(loads, placement, strict=True)]
                   for placement in (new, old, [placed(load, mixture.ranks, Placement()) for load in loads])]
        assert all(now <= min(then, linear) * (1 + 1e-9) for now, then, linear in zip(*fullest, strict=True))
        mean = loads.sum() / mixture.ranks
        assert (moves.before, moves.after) == (pytest.approx(sum(fullest[1]) / mean),
                                               pytest.approx(sum(fullest[0]) / mean))
        sent = [moved(*pair) for pair in zip(old, new, strict=True)]
        assert sum(moves.bytes.values()) == 10 * sum(sent[0].values()) + sum(sent[1].values())
        for held, first, each in zip(new, before, sent, strict=True):
            assert [len(slots) for slots in held] == [len(slots) for slots in first]
            assert {*np.concatenate(held).tolist()} == {*range(mixture.experts)}
            assert all(source != target for source, target in each)
        drawn = draws.draw(tokens)
        assert (drawn.rows.sum(axis=1) == tokens * mixture.top_k).all()
        for layer, held in enumerate(new):
            share = fullness(drawn.experts[layer].astype(float), held)
            assert np.abs(drawn.rows[layer] - share).max() <= max(map(len, held))


def test_only_what_a_rank_lacks_is_fetched_and_holders_share_the_sending():
    old = [np.array([0, 1]), np.array([0, 2]), np.array([3, 4]), np.array([5, 5])]
    new = [np.array([1, 0]), np.array([2, 3]), np.array([0, 4]), np.array([0, 5])]
    assert moved(old, new) == {(2, 1): 1, (0, 2): 1, (1, 3): 1}
    assert moved(old, old) == {}


def test_only_the_last_steps_of_the_window_count():
    draws = ExpertDraws(Mixture(1, 8, Routing(2.0, deviation=1.0), 4, Placement("balanced")), [0], 1, window=2)
    steps = [draws.draw(1000).experts for _ in range(5)]
    draws.rebalance()
    expected = placed((steps[3] + steps[4])[0].astype(float), 4, Placement("balanced"))
    assert [[*held] for held in draws.held(0)] == [[*held] for held in expected]


def test_experts_are_rearranged_a_quarter_of_the_interval_after_the_start_and_then_each_interval():
    draws = ExpertDraws(Mixture(1, 8, Routing(), 4, Placement("balanced")), [0], 1, window=5, interval=8)
    due = []
    for step in range(1, 21):
        draws.draw(10)
        if draws.due:
            due.append(step)
            draws.rebalance()
    assert due == [2, 10, 18]


def test_without_a_window_experts_lie_by_their_popularity_and_stay():
    draws = ExpertDraws(Mixture(8, 128, Routing(1.2), 8, Placement("balanced", 32)), range(3), 1)
    drawn = draws.draw(4_000)
    assert drawn.rows.max() < 1.1 * drawn.rows.mean()
    assert not draws.due and draws.rebalance().bytes == {}


def test_a_stage_draws_its_own_layers_and_knows_the_bytes_of_an_expert(model):
    """Three dense layers come first; an expert has three matrices of 7,168 x 2,048 in blocks of FP8, two on a GPU."""
    deepseek = model("deepseek-v3")
    shard = Shard(data=8, expert_parallel=True, stages=2, stage=0)
    assert mixture_layers(deepseek, shard) == [*range(3, 31)]
    draws = ExpertDraws.of(deepseek, shard, 1)
    assert draws.expert_bytes[0] == pytest.approx(3 * 7168 * 2048 * shard.precision.weights.bytes)
    assert draws.draw(64).rows.shape == (28, 8)
    with pytest.raises(ConfigError, match="no layer here has experts to draw"):
        ExpertDraws.of(model("llama-3.1-8b"), Shard(), 1)


@pytest.mark.parametrize("redundant, problem", [
    (3, "8 experts and 3 redundant ones do not divide among 4 ranks; set it to 4"),
    (28, "28 copies fill 9 slots on each of 4 ranks, and there are 8 experts; set it to 24 or less")])
def test_slots_that_do_not_divide_or_that_experts_cannot_fill_are_refused(redundant, problem):
    with pytest.raises(ConfigError, match=problem):
        ExpertDraws(Mixture(1, 8, Routing(), 4, Placement("balanced", redundant)), [0], 1, window=1)


def test_ranks_without_experts_have_no_rows():
    drawn = ExpertDraws(Mixture(1, 2, Routing(), 4), [0], 1).draw(10)
    assert isinstance(drawn, Drawn) and drawn.rows[0].tolist()[2:] == [0, 0] and drawn.active[0, 3] == 0
