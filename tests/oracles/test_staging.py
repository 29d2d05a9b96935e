"""Staged formulas give the formulas' own bits, and do no more than they have to."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.oracles.compiled.arithmetic import Arrays, Floats, stage

SOME = (1.0, 100.0)
TABLE = np.array([[3.0, 2.0]])


def code(formula, m=Floats, **symbols):
    """What the staged formula does."""
    return [line.strip() for line in inspect.getsource(stage(formula, symbols, m)).splitlines()[1:]]


def test_staging_folds_constants_and_computes_repeated_expressions_once():
    assert code(lambda m, x: (x + m.ceil(2.5)) * m.log2(8.0) - (x + 3), x=SOME) == [
        "t0 = x + 3", "return ((t0 * 3.0) - t0)"]


def test_staging_drops_expressions_that_no_result_needs():
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
def test_staging_drops_comparisons_that_bounds_decide(formula, written):
    assert code(formula, x=SOME) == [f"return {f'({written})' if ' ' in written else written}"]


def test_entries_of_tables_are_looked_up():
    staged = stage(lambda m, x: m.look_up(TABLE, 0, x - 1.0), {"x": SOME}, Floats)
    assert [staged(1), staged(2.0)] == TABLE[0].tolist()


def test_a_number_without_room_between_its_bounds_is_not_looked_at():
    staged = stage(lambda m, x, y: x * y, {"x": (3.0, 3.0), "y": SOME}, Floats)
    assert staged(None, 2) == 6


#: Formulas of three symbols, as nested tuples.
leaves = st.sampled_from(["x", "y", "z", 0, 1, 2.5, -1.0, 128])
of_one = st.sampled_from(["ceil", "floor", "log2", "**"])
of_two = st.sampled_from(["+", "-", "*", "/", "minimum", "maximum", "where <", "where <=", "where ==", "where &"])
formulas = st.recursive(
    leaves, lambda each: st.one_of(st.tuples(of_two, each, each), st.tuples(of_one, each)), max_leaves=12)


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


@given(tree=formulas, several=st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=4))
def test_staged_formulas_equal_the_unstaged(tree, several):
    columns = np.array(several, dtype=np.float64).T
    bounds = {name: (min(column), max(column)) for name, column in zip("xyz", columns.tolist(), strict=True)}
    apart = {name: (least, most + 1) for name, (least, most) in bounds.items()}  # numpy's powers of arrays are its own

    def formula(m, *found):
        return worked_out(tree, m, dict(zip("xyz", found, strict=True)))

    staged, of_arrays = stage(formula, bounds, Floats), stage(formula, apart, Arrays)
    for row in several:
        assert staged(*row) == formula(Floats, *row)
    assert np.all(of_arrays(*columns) == formula(Arrays, *columns))
