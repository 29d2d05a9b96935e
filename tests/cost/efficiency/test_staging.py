"""Staged formulas give the formulas' own bits, and do no more than they have to."""

import inspect

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ksim.compute.kernels.attention import COUNTS, AttentionLayer
from ksim.cost.efficiency.attention import cut, features, timed
from ksim.cost.efficiency.attention_grids import Arrays, Counts, Floats
from ksim.cost.efficiency.attention_rates import CONSTANTS, Rates
from ksim.cost.efficiency.attention_singly import NUMBERS, heads_of
from ksim.cost.efficiency.staging import stage
from ksim.flow.batch import Batch
from ksim.foundation.units import DType
from ksim.studies.lookup import gpu_of

SOME = (1.0, 100.0)
TABLE = np.array([[3.0, 2.0]])


def code(formula, m=Floats, **symbols):
    """What the staged formula does."""
    return [line.strip() for line in inspect.getsource(stage(formula, symbols, m)).splitlines()[1:]]


def test_what_is_known_is_worked_out_and_what_comes_twice_is_done_once():
    assert code(lambda m, x: (x + m.ceil(2.5)) * m.log2(8.0) - (x + 3), x=SOME) == [
        "t0 = x + 3", "return ((t0 * 3.0) - t0)"]


def test_what_no_result_needs_is_dropped():
    assert code(lambda m, x, y: (m.log2(x), x + y)[1:], x=SOME, y=SOME) == ["return ((x + y), )"]


@pytest.mark.parametrize("formula, written", [
    (lambda m, x: m.where(x > 0, x + 5, x - 5), "x + 5"),
    (lambda m, x: m.where((x > 5) & (x < 0), x + 5, x - 5), "x - 5"),
    (lambda m, x: m.maximum(x / 200, 1.0), "1.0"),
    (lambda m, x: m.minimum(1 / x, 1.0), "1 / x"),
    (lambda m, x: x * 0.0 + (x - 0) / 1 + x / x, "x + 1"),
    (lambda m, x: m.where(x == -1, 0.0, x ** 1), "x"),
    (lambda m, x: m.where(x <= 7, 2.0, 3.0), "2.0 if (x <= 7) else 3.0"),
    (lambda m, x: m.maximum(m.look_up(TABLE, 0, 1) * x, 2.0), "2.0 * x"),
    (lambda m, x: m.minimum(m.look_up(TABLE, 0, x - 1), 2.0) / 1, "2.0")])
def test_bounds_decide_what_they_can(formula, written):
    assert code(formula, x=SOME) == [f"return {f'({written})' if ' ' in written else written}"]


def test_entries_of_tables_are_looked_up():
    staged = stage(lambda m, x: m.look_up(TABLE, 0, x - 1.0), {"x": SOME}, Floats)
    assert [staged(1), staged(2.0)] == TABLE[0].tolist()


def test_a_number_without_room_between_its_bounds_is_not_looked_at():
    staged = stage(lambda m, x, y: x * y, {"x": (3.0, 3.0), "y": SOME}, Floats)
    assert staged(None, 2) == 6


def symbolic(depth):
    """Formulas of three symbols, as nested tuples."""
    leaves = st.sampled_from(["x", "y", "z", 0, 1, 2.5, -1.0, 128])
    two = st.sampled_from(["+", "-", "*", "/", "minimum", "maximum", "where <", "where <=", "where ==", "where &"])
    return st.recursive(leaves, lambda each: st.one_of(
        st.tuples(two, each, each), st.tuples(st.sampled_from(["ceil", "floor", "log2", "**"]), each)), max_leaves=depth)


def worked_out(tree, m, known):
    """What a formula comes to; it divides by nothing that may be 0, and so on."""
    if not isinstance(tree, tuple):
        return known.get(tree, tree)
    name, one, other = tree[0], *(worked_out(each, m, known) for each in (*tree[1:], tree[1])[:2])
    apart = {"<": lambda: one < other, "<=": lambda: one <= other, "==": lambda: one == other,
             "&": lambda: (one < 3) & (other > 1)}
    if name.startswith("where "):
        return m.where(apart[name.split()[1]](), one, other + 1)
    return {"+": lambda: one + other, "-": lambda: one - other, "*": lambda: one * other,
            "/": lambda: one / m.maximum(other, 1.0), "**": lambda: m.maximum(one, 0.0) ** 1.3,
            "log2": lambda: m.log2(m.maximum(one, 0.5)), "ceil": lambda: m.ceil(one), "floor": lambda: m.floor(one),
            "minimum": lambda: m.minimum(one, other), "maximum": lambda: m.maximum(one, other)}[name]()


numbers = st.one_of(st.integers(0, 40), st.floats(0.125, 40.0))


@given(tree=symbolic(12), several=st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=4))
def test_any_formula_is_what_it_was(tree, several):
    columns = np.array(several, dtype=np.float64).T
    bounds = {name: (min(column), max(column)) for name, column in zip("xyz", columns.tolist(), strict=True)}
    apart = {name: (least, most + 1) for name, (least, most) in bounds.items()}  # numpy's powers of arrays are its own

    def formula(m, *found):
        return worked_out(tree, m, dict(zip("xyz", found, strict=True)))

    staged, of_arrays = stage(formula, bounds, Floats), stage(formula, apart, Arrays)
    for row in several:
        assert staged(*row) == formula(Floats, *row)
    assert np.all(of_arrays(*columns) == formula(Arrays, *columns))


batches = st.builds(
    lambda contexts, times, chunks: Batch.of(*[(1, context) for context in contexts] * times, *chunks),
    st.lists(st.integers(0, 60_000), max_size=12), st.sampled_from([1, 2, 30]),
    st.lists(st.tuples(st.integers(2, 4000), st.integers(0, 60_000)), max_size=3))
layers = st.builds(AttentionLayer, st.sampled_from([8, 32, 40]), st.sampled_from([1, 4, 8]),
                   st.sampled_from([64, 128, 256]), st.sampled_from([0, 128, 4096]),
                   st.sampled_from([DType.BF16, DType.FP8]))
gpus = st.sampled_from(["h200", "a100-80g", "l40s", "b200", "b300"])


def physics(layer, gpu):
    heads = heads_of(layer, gpu_of(gpu))
    rates = Rates.of(CONSTANTS, heads, Floats)

    def formula(m, *counts):
        several = Counts(*counts)
        time = timed(cut(several, heads, m), several, rates, m)
        return time.seconds, time.compute > time.memory, *features(several, heads, time, m)

    return formula


def staged_for(formula, decodes, chunks, m):
    return stage(formula, {name: NUMBERS[chunks if name.startswith("chunk") else decodes] for name in COUNTS}, m)


@given(layer=layers, gpu=gpus, batch=batches)
@settings(deadline=None)
def test_attention_of_a_batch_is_what_it_was(layer, gpu, batch):
    assume(batch.sequences)
    formula, counts = physics(layer, gpu), layer.counts(batch)
    expected = formula(Floats, *counts)
    assert staged_for(formula, counts[0] > 0, counts[3] > 0, Floats)(*counts) == expected
    assert staged_for(formula, None, None, Floats)(*counts) == expected


@given(layer=layers, gpu=gpus, several=st.lists(batches.filter(lambda batch: batch.sequences), min_size=1, max_size=5))
@settings(deadline=None)
def test_attention_of_many_batches_is_what_it_was(layer, gpu, several):
    columns = np.array([layer.counts(batch) for batch in several], dtype=np.float64).T
    formula = physics(layer, gpu)
    kinds = [all(some) or (None if any(some) else False) for some in (columns[0] > 0, columns[3] > 0)]
    found, expected = staged_for(formula, *kinds, Arrays)(*columns), formula(Arrays, *columns)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(np.broadcast_to(one, len(several)), np.broadcast_to(other, len(several)), equal_nan=True)
