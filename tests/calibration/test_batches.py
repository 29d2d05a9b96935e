"""Ragged batches in flat arrays, against plain lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ksim.calibration.batches import PointBatches
from ksim.calibration.measurements import listed

batch = st.lists(st.tuples(st.integers(1, 4), st.integers(4, 6)), max_size=6)
several = st.lists(batch, min_size=1, max_size=5)


def plain(batches):
    return [list(zip(*(lengths.tolist() for lengths in batches.lengths(i)), strict=True)) for i in range(len(batches))]


@given(several)
def test_batches_hold_the_sequences_they_were_made_of(lists):
    batches = PointBatches.of(*lists)
    assert plain(batches) == lists
    assert batches.sequences.tolist() == [len(pairs) for pairs in lists]
    assert batches.queries.tolist() == [sum(new for new, _ in pairs) for pairs in lists]


@given(several, st.data())
def test_taking_and_joining_batches_is_as_with_lists(lists, data):
    places = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=6))
    batches = PointBatches.of(*lists)
    assert plain(batches.take(np.array(places, dtype=np.int64))) == [lists[i] for i in places]
    assert plain(PointBatches.join([batches, batches])) == lists * 2
    assert plain(batches.take(np.array([bool(pairs) for pairs in lists]))) == [pairs for pairs in lists if pairs]


@given(several)
def test_keys_are_equal_for_equal_batches_only(lists):
    keys = PointBatches.of(*lists).keys()
    for i, first in enumerate(lists):
        for j, second in enumerate(lists):
            assert (keys[i] == keys[j]) == (first == second)


def test_listed_names_a_few_rows_and_their_number():
    assert listed([3]) == "row 3"
    assert listed(np.array([3, 4]), "line") == "lines 3, 4"
    assert listed(range(5000)) == "rows 0, 1, 2, 3, 4 ... (5,000 in all)"
