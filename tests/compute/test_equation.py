"""Equations: what is read, what is refused, and that the products they are told as give what the einsum gives."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.sizes import Contraction, parse
from tests.compute.strategies import equations
from tests.properties import examples


def multiplied(part: Contraction, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """One batched matrix product of what is classified as batch, rows, columns and depth."""
    size = {**dict(zip(part.left, left.shape, strict=True)), **dict(zip(part.right, right.shape, strict=True))}
    count, m, n, k = (prod(size[index] for index in group)
                      for group in (part.batch, part.rows, part.columns, part.depth))
    first, second = part.batch + part.rows + part.depth, part.batch + part.depth + part.columns
    a = left.transpose([part.left.index(index) for index in first]).reshape(count, m, k)
    b = right.transpose([part.right.index(index) for index in second]).reshape(count, k, n)
    made = part.batch + part.rows + part.columns
    return (a @ b).reshape([size[index] for index in made]).transpose([made.index(index) for index in part.out])


@given(equations(), st.data())
@examples(150)
def test_products_from_left_to_right_are_the_einsum(text, data):
    read = parse(text)
    read.check()
    size = {index: data.draw(st.integers(1, 4)) for index in read.indices}
    rng = np.random.default_rng(0)
    tensors = [rng.integers(-9, 9, [size[index] for index in operand]) for operand in read.operands]
    left = tensors[0]
    for part, right in zip(read.contractions, tensors[1:], strict=True):
        left = multiplied(part, left, right)
    made, wanted = read.contractions[-1].out, read.results[0]
    assert sorted(made) == sorted(wanted)
    assert np.array_equal(left.transpose([made.index(index) for index in wanted]), np.einsum(text, *tensors))


def test_indices_are_batch_rows_columns_and_depth():
    """Queries of r heads that share a KV head meet its keys."""
    part, = parse("bKrsh,bKzh->bKrsz").contractions
    assert (part.batch, part.rows, part.columns, part.depth) == ("bK", "rs", "z", "h")


def test_three_operands_keep_what_is_still_needed():
    first, second = parse("bsm,mF,Fn->bsn").contractions
    assert (first.out, second.left, second.depth) == ("bsF", "bsF", "F")


@pytest.mark.parametrize("text, problem", [
    ("bsm,mF", "expected one arrow between inputs and result, as in 'bsm,mF->bsF'"),
    ("bsm->mF->bsF", "expected one arrow between inputs and result, as in 'bsm,mF->bsF'"),
    ("bsm,,mF->bsF", "expected indices on both sides of each comma and of the arrow"),
    ("bsm,mF->", "expected indices on both sides of each comma and of the arrow"),
    ("->", "expected indices on both sides of each comma and of the arrow"),
    ("bsm, mF->bsF", "' ' is no index; each is one letter, with nothing between them"),
    ("bs2,mF->bsF", "'2' is no index; each is one letter, with nothing between them"),
    ("bsms,mF->bsF", "index 's' is twice in 'bsms'"),
    ("bsm,mF->bsFF", "index 'F' is twice in 'bsFF'"),
])
def test_what_is_no_equation(text, problem):
    with pytest.raises(ValueError) as error:
        parse(text)
    assert str(error.value) == f"{text!r}: {problem}"


@pytest.mark.parametrize("text, problem", [
    ("bsm,mF->bsG", "index 'G' of the result is in no input"),
    ("bsm,mgF->bsF", "index 'g' is in one input only and not in the result"),
    ("bsm,mF,Fn->bn", "index 's' is in one input only and not in the result"),
])
def test_indices_from_nowhere_or_left_over(text, problem):
    with pytest.raises(ValueError) as error:
        parse(text).check()
    assert str(error.value) == f"{text!r}: {problem}"


def test_the_number_of_operands_and_results():
    with pytest.raises(ValueError, match="'m->m': expected 2 or 3 operands, with commas between them, not 1"):
        parse("m->m").of(2, 3)
    with pytest.raises(ValueError, match="'m,m->m': expected 1 operand, with commas between them, not 2"):
        parse("m,m->m").of(1)
    with pytest.raises(ValueError, match="'m->m,m': expected one result, not 2"):
        parse("m->m,m").of(1)
