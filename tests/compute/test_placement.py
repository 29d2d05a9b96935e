"""Who holds which expert: none is lost, and EPLB evens out what it knows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.expert_rows import copies, fullness, placed
from ksim.foundation.errors import ConfigError
from ksim.specs.shard import Placement

popularities = st.lists(st.floats(0, 100), min_size=1, max_size=64).map(np.array)


@given(popularities, st.integers(1, 16), st.sampled_from(["linear", "round_robin"]))
def test_each_expert_is_held_once(load, ranks, strategy):
    held = placed(load, ranks, Placement(strategy))
    assert sorted(np.concatenate(held)) == [*range(len(load))]
    assert max(map(len, held)) - min(map(len, held)) <= 1
    assert fullness(load, held).sum() == pytest.approx(load.sum())


@given(popularities, st.integers(1, 16), st.integers(0, 4))
def test_balanced_ranks_are_never_fuller_than_they_were(load, ranks, room):
    """All slots are used, all experts held, all load carried."""
    redundant = -len(load) % ranks + room * ranks
    held = placed(load, ranks, Placement("balanced", redundant))
    assert {len(experts) for experts in held} == {(len(load) + redundant) // ranks}
    assert len(copies(held)) == len(load) and copies(held).min() >= 1
    assert fullness(load, held).sum() == pytest.approx(load.sum())
    assert fullness(load, held).max() <= (1 + 1e-9) * fullness(load, placed(load, ranks, Placement())).max()


def test_ranks_take_experts_in_their_order_or_in_turns():
    load = np.ones(5)
    assert [[*map(int, experts)] for experts in placed(load, 2, Placement())] == [[0, 1, 2], [3, 4]]
    assert [[*map(int, experts)] for experts in placed(load, 2, Placement("round_robin"))] == [[0, 2, 4], [1, 3]]


def test_the_heaviest_is_copied_and_packed_first():
    """8 of 16 is cut into 4 and 4; with them go 3 and 1, and 2 and 2."""
    load = np.array([8.0, 3.0, 2.0, 2.0, 1.0])
    held = placed(load, 2, Placement("balanced", 1))
    assert [*copies(held)] == [2, 1, 1, 1, 1]
    assert [*fullness(load, held)] == [8, 8]
    assert sorted(sorted(map(int, experts)) for experts in held) == [[0, 1, 4], [0, 2, 3]]


def test_experts_stay_where_packing_would_be_worse():
    """3 + 3 and 2 + 2 + 2 are even; the heaviest first would part the 3s, and make it 7 and 5."""
    load = np.array([3.0, 3.0, 0.0, 2.0, 2.0, 2.0])
    assert [*fullness(load, placed(load, 2, Placement("balanced")))] == [6, 6]


def test_slots_that_do_not_divide_are_refused_with_a_number_that_would():
    with pytest.raises(ConfigError, match=r"128 experts and 3 redundant ones do not divide among 8 ranks; set it to 8"):
        placed(np.ones(128), 8, Placement("balanced", 3))
