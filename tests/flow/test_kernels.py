"""Kernels as columns."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.steps import KernelColumns, KernelCost, Shapes, distinct

KERNELS = [KernelCost.of("qkv", "gemm", 2.0, joules=3.0, flops=4.0, bytes=5.0, bound="compute", shape="a"),
           KernelCost.of("act", "silu_mul", 1.0, shape="b"),
           KernelCost.of("down", "gemm", 0.5, bound="launch", shape="c")]


@given(st.lists(st.integers(0, len(KERNELS) - 1)))
def test_kernels_taken_several_times_are_columns_of_so_many(rows):
    taken = KernelColumns.of(KERNELS).taken(np.array(rows, dtype=np.int64))
    assert [taken[row] for row in range(len(taken))] == [KERNELS[row] for row in rows]


@given(st.lists(st.integers(0, len(KERNELS) - 1)))
def test_kinds_are_left_as_if_others_had_never_been_there(rows):
    """In the order in which they come."""
    taken = KernelColumns.of(KERNELS).taken(np.array(rows, dtype=np.int64))
    left, alone = taken.of_kinds(distinct(taken.kind).tolist()), KernelColumns.of([KERNELS[row] for row in rows])
    assert (left.kinds, left.kind.tolist()) == (alone.kinds, alone.kind.tolist())
    assert [left[row] for row in range(len(left))] == [KERNELS[row] for row in rows]


@given(st.lists(st.lists(st.integers(0, len(KERNELS) - 1)), max_size=4))
def test_columns_that_are_joined_have_all_kernels_in_order(pieces):
    joined = KernelColumns.joined([KernelColumns.of([KERNELS[row] for row in rows]) for rows in pieces])
    assert [joined[row] for row in range(len(joined))] == [KERNELS[row] for rows in pieces for row in rows]


counts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20)


@given(counts, st.lists(st.sampled_from(["{}", "a {b}", "2 of 3"]), max_size=5))
def test_shapes_print_what_they_were_made_of_and_equal_ones_are_one(numbers, texts):
    counted = Shapes.numbered("{:.0f} seqs, {:.0f} keys of {{8}}", len(numbers), np.array(numbers).T)
    shapes = Shapes.joined([counted, Shapes.of(texts)])
    printed = [*(f"{one} seqs, {other} keys of {{8}}" for one, other in numbers), *texts]
    assert list(shapes) == printed
    assert [shapes[row] for row in range(len(shapes))] == printed
    codes, distinct = shapes.distinct()
    assert [distinct[code] for code in codes.tolist()] == printed
    assert len(set(distinct)) == len(distinct)


def test_shapes_that_print_alike_are_one():
    codes, distinct = Shapes.numbered("{:.1f} MB", 3, [np.array([1.01, 2.0, 1.02])]).distinct()
    assert (codes.tolist(), [*distinct]) == ([0, 1, 0], ["1.0 MB", "2.0 MB"])
