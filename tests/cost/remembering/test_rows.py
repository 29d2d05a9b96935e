"""What rows say comes back to the last bit, or it does not come back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.cost.remembering.rows import packed, packed_sizes, sealed, unpacked, unpacked_sizes, whole
from ksim.flow.filled import BOUNDS
from ksim.oracles import Estimate
from ksim.oracles.efficiency.answers import Estimates
from tests.laws.test_oracles import bits

numbers = st.floats(allow_nan=True, allow_infinity=True)
words = st.text(st.characters(codec="utf-8", exclude_characters="\x1f"))


def said(bounds: st.SearchStrategy[str]) -> st.SearchStrategy[Estimate]:
    return st.builds(Estimate, numbers, bounds, numbers, numbers, words, words, numbers, numbers, numbers,
                     st.booleans())


@st.composite
def tables(draw) -> tuple[list[Estimate], int]:
    """What is said of (kinds x sizes,) kernels, and of how many sizes."""
    kinds, sizes = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    some = draw(st.lists(said(st.sampled_from(BOUNDS)), min_size=1, max_size=4))
    return draw(st.lists(st.sampled_from(some), min_size=kinds * sizes, max_size=kinds * sizes)), sizes


@given(said(words))
def test_an_estimate_comes_back_to_the_last_bit(found):
    assert bits(unpacked(packed(found))) == bits(found)


@given(tables())
def test_columns_come_back_to_the_last_bit(table):
    found, sizes = table
    bodies = packed_sizes(Estimates.of(found), sizes)
    assert len(bodies) == sizes
    assert [*map(bits, unpacked_sizes(bodies, len(found) // sizes).each())] == [*map(bits, found)]


@given(tables(), st.data())
def test_sizes_are_rows_of_their_own(table, data):
    """Those of some, in any order, are what is said of all kinds at these."""
    found, sizes = table
    bodies = packed_sizes(Estimates.of(found), sizes)
    chosen = data.draw(st.lists(st.integers(0, sizes - 1), min_size=1, max_size=6))
    again = unpacked_sizes([bodies[size] for size in chosen], len(found) // sizes).each()
    expected = [found[kind + size] for kind in range(0, len(found), sizes) for size in chosen]
    assert [*map(bits, again)] == [*map(bits, expected)]


def test_no_bit_of_what_is_not_a_number_is_lost():
    strange = np.array([0x7FF8000000000001, -1, 0x7FF0000000000123], dtype=np.int64).view(np.float64)
    first = np.zeros(3, np.intp)
    columns = Estimates(strange, first, strange, strange, first, first, strange, strange, strange,
                        np.ones(3, np.bool_), [""], [""])
    found = unpacked_sizes(packed_sizes(columns, 3), 1)
    for name in ("seconds", "waves", "idle", "eta", "low", "high"):
        assert getattr(found, name).tobytes() == strange.tobytes()
    assert (found.bound.dtype, found.launch.dtype, found.extrapolated.dtype) == (np.intp, np.intp, np.bool_)


bodies = (st.binary() | said(words).map(packed)
          | tables().map(lambda table: packed_sizes(Estimates.of(table[0]), table[1])[0]))


@given(bodies, st.binary(min_size=1, max_size=16))
def test_what_is_sealed_is_whole(body, key):
    assert whole(key, sealed(key, body)) == body


@given(bodies, st.data())
def test_a_row_that_is_not_whole_or_of_another_key_is_none(body, data):
    row = bytearray(sealed(b"key", body))
    assert whole(b"another", bytes(row)) is None
    assert whole(b"key", bytes(row) + data.draw(st.binary(min_size=1, max_size=9))) is None
    row[data.draw(st.integers(0, len(row) - 1))] ^= data.draw(st.integers(1, 255))
    assert whole(b"key", bytes(row)) is None
    assert whole(b"key", bytes(row[:data.draw(st.integers(0, len(row) - 1))])) is None


@pytest.mark.parametrize("row", [None, 3, "text", 2.5, b""])
def test_what_is_no_row_is_none(row):
    assert whole(b"key", row) is None
