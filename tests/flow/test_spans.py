"""Spans as columns."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.spans import NUMBERS, Spans
from ksim.flow.kernels import KernelCost

SPANS = [KernelCost.of("qkv", "gemm", 2.0, 3.0, 4.0, 5.0, "compute", shape="a"), KernelCost.of("act", "silu_mul", 1.0, shape="b"),
         KernelCost.of("down", "gemm", 0.5, bound="launch", shape="c")]


@given(st.lists(st.integers(0, len(SPANS) - 1)))
def test_spans_taken_several_times_are_columns_of_so_many(rows):
    taken, whole = Spans.of(SPANS).taken(np.array(rows, dtype=np.int64)), Spans.of([SPANS[row] for row in rows])
    assert [taken.kinds[kind] for kind in taken.kind] == [whole.kinds[kind] for kind in whole.kind]
    assert list(taken.shapes) == list(whole.shapes)
    for name in NUMBERS:
        np.testing.assert_array_equal(getattr(taken, name), getattr(whole, name))
