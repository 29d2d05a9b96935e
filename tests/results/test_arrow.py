"""Columns are those that pyarrow itself would make."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.results import arrow

WORDS = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5))


@given(st.lists(WORDS, max_size=20))
def test_texts_with_missing_values_become_arrow_arrays(words):
    assert arrow.texts(words).equals(pa.array(words, pa.string()))


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=20))
def test_numbers_with_missing_values_become_arrow_arrays(values):
    missing = np.array([value is None for value in values], dtype=bool)
    known = np.array([value or 0 for value in values], dtype=np.int64)
    assert arrow.numbers(known, missing).equals(pa.array(values, pa.int64()))
    assert arrow.numbers(known).equals(pa.array(known))
    assert arrow.flags(missing).equals(pa.array(missing))


@pytest.mark.parametrize("values", [np.array([]), np.array([0.5, np.nan]), np.arange(9)[::2], np.arange(3, dtype="i4")])
def test_arrays_of_any_kind_and_layout_become_arrow_arrays(values):
    assert arrow.numbers(values).equals(pa.array(values)) or np.isnan(values).any()
    assert np.array_equal(arrow.numbers(values).to_numpy(), values, equal_nan=True)


def test_rows_with_gaps_become_an_arrow_table():
    schema = pa.schema([("name", pa.string()), ("seconds", pa.float64()), ("count", pa.int64())])
    rows = [{"name": "a", "seconds": 0.5}, {"name": "b", "count": 3}, {}]
    assert arrow.records(rows, schema).equals(pa.Table.from_pylist(rows, schema))
    assert arrow.records([], schema).equals(pa.Table.from_pylist([], schema))


def test_frugality_ends_with_its_block():
    before = pa.default_memory_pool().backend_name
    with pytest.raises(ValueError), arrow.frugally():
        assert pa.default_memory_pool().backend_name == "system"
        raise ValueError
    assert pa.default_memory_pool().backend_name == before
