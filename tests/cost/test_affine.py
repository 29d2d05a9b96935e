"""What is known of a few numbers of tokens holds for all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.graph import Block, Op
from ksim.compute.kernels.basic import Gemm
from ksim.cost.affine import AffineBlocks
from ksim.scenario.models import model_of
from ksim.specs.shard import Shard
from tests.cost.timers import MODELS
from tests.properties import examples

KNOWN: dict[object, AffineBlocks | None] = {}


def grown(name: str, shard: Shard) -> AffineBlocks | None:
    if (name, shard.tensor) not in KNOWN:
        KNOWN[name, shard.tensor] = AffineBlocks.of(lambda tokens: model_of(name).body(tokens, shard))
    return KNOWN[name, shard.tensor]


@pytest.mark.parametrize("name, tensor", [*MODELS, ("llama-3.1-70b", 8), ("gemma-2-2b", 2), ("qwen3-32b", 4)])
@given(tokens=st.integers(1, 100_000))
@examples(20)
def test_it_launches_what_the_model_does(name, tensor, tokens):
    shard = Shard(tensor=tensor)
    if (growing := grown(name, shard)) is not None:
        assert growing.at(tokens) == model_of(name).body(tokens, shard)


def test_dense_models_grow_evenly_and_experts_do_not():
    assert grown("llama-3.1-8b", Shard()) is not None
    assert grown("qwen3-30b-a3b", Shard()) is None


def test_what_grows_in_tiles_is_no_line():
    assert AffineBlocks.of(lambda tokens: [Block((Op("tiled", Gemm(-(-tokens // 8), 64, 64)),))]) is None


def test_a_launch_less_is_no_line():
    assert AffineBlocks.of(lambda tokens: [Block((Op("some", Gemm(tokens, 64, 64)),) * (1 + (tokens > 2000)))]) is None
