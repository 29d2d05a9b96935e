"""Folding equal layers, and unfolding them."""

import pytest

from ksim.compute.graph import fold
from ksim.compute.kernels.attention import Attention
from ksim.flow.batch import Batch
from ksim.specs.shard import Shard


@pytest.mark.parametrize("layers, runs", [
    ("", []),
    ("a", [("a", 1)]),
    ("aaaa", [("a", 4)]),
    ("ababab", [("ab", 3)]),
    ("ababa", [("ab", 2), ("a", 1)]),
    ("dssss", [("d", 1), ("s", 4)]),  # a dense layer before the mixtures
    ("ffffss", [("f", 4), ("s", 2)]),  # windows in the last layers
    ("abcd", [("a", 1), ("b", 1), ("c", 1), ("d", 1)]),
    ("ssfssf", [("ssf", 2)]),
])
def test_fold(layers, runs):
    assert fold(layers) == runs
    assert "".join(run * repeats for run, repeats in runs) == layers


def test_folded_launches_are_those_of_the_layers_one_by_one(model):
    """Gemma 2 has two kinds of layers; its 26 fold into 13 pairs of 2 x 12 launches."""
    gemma, batch = model("gemma-2-2b"), Batch.of((1, 6000), (64, 5000))
    graph = gemma.graph(batch.tokens, batch.samples, Shard())
    assert [(len(block.ops), block.repeat) for block in graph.blocks] == [(2, 1), (24, 13), (5, 1)]
    launches = list(graph.over(batch))
    assert len(launches) == 2 + 26 * 12 + 5
    attention = [kernel for _, kernel in launches if isinstance(kernel, Attention)]
    assert [kernel.keys for kernel in attention[:2]] == [4096 + 4159, 6001 + 5064]
    assert attention == attention[:2] * 13


@pytest.mark.parametrize("name", ["gemma-2-2b", "llama-3.2-1b", "qwen3-30b-a3b"])
def test_unfolded_work_is_the_sum_over_blocks(model, name):
    batch = Batch.of((1, 300), (16, 8))
    graph = model(name).graph(batch.tokens, batch.samples, Shard())
    folded = sum(block.repeat * sum(_flops(op.kernel, batch) for op in block.ops) for block in graph.blocks)
    unfolded = sum(kernel.work.flops for _, kernel in graph.over(batch))
    assert unfolded == pytest.approx(folded, rel=1e-12)


def _flops(kernel, batch):
    return (kernel.over(batch) if hasattr(kernel, "over") else kernel).work.flops
