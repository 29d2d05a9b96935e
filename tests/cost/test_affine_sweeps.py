"""Kernels of one kind as columns are those that grow, one by one."""

import numpy as np
import pytest
from attrs import astuple
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.graph import Op
from ksim.cost.affine import COLUMNAR, DRAWN, AffineBlocks, AffineKernel, affine_sweeps
from ksim.scenario.models import model_of
from ksim.specs.shard import Shard
from tests.properties import examples

SIZED = {}


def sized(name: str, tensor: int) -> list[tuple[int, AffineKernel]]:
    """The ops of a model's body that grow, by their places."""
    if (name, tensor) not in SIZED:
        growing = AffineBlocks.of(lambda tokens: model_of(name).body(tokens, Shard(tensor=tensor)))
        ops = [op for ops, _ in growing.blocks for op in ops]
        SIZED[name, tensor] = [(place, op) for place, op in enumerate(ops)
                               if not isinstance(op, Op) and op.kind in COLUMNAR]
    return SIZED[name, tensor]


@pytest.mark.parametrize("name, tensor", [("llama-3.1-8b", 1), ("gemma-2-2b", 2), ("qwen3-32b", 4)])
@given(tokens=st.lists(st.integers(1, 100_000), min_size=1, max_size=4))
@examples(10)
def test_columns_are_the_kernels_one_by_one(name, tensor, tokens):
    ops = dict(sized(name, tensor))
    groups = affine_sweeps(ops.items())
    assert sorted(place for group in groups for place in group.places.tolist()) == sorted(ops)
    for group in groups:
        several = group.at(np.array(tokens))
        assert [*several] == [ops[place].at(each).kernel for place in group.places.tolist() for each in tokens]
        for amount in ("flops", "bytes", "writes"):
            column = np.broadcast_to(getattr(several.kernel.work, amount), len(several))
            assert column.tolist() == [getattr(kernel.work, amount) for kernel in [*several]]


def test_products_of_one_format_are_one_and_so_is_all_that_moves_memory():
    kinds = {(type(group.first).__name__, len(group.families)) for group in affine_sweeps(sized("llama-3.1-8b", 1))}
    assert kinds == {("Gemm", 4), ("Pointwise", 7)}


def test_numbers_stay_as_they_are():
    (_, one), *_ = sized("llama-3.1-8b", 1)
    found, expected = affine_sweeps([(0, one)])[0].at(np.array(DRAWN))[1], one.at(DRAWN[1]).kernel
    assert [type(value) for value in astuple(found)] == [type(value) for value in astuple(expected)]
