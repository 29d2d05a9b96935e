"""Latent attention's FLOP and bytes by hand, and which of its two forms a batch gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.graph import BatchDependent
from ksim.compute.kernels import OverBatch
from ksim.compute.kernels.basic import BatchedGemm, Gemm
from ksim.compute.kernels.mla import LatentAttention
from ksim.compute.latent import PerToken
from ksim.flow.batch import Batch
from ksim.foundation.units import DType
from ksim.specs.shard import Precision, Shard
from tests.properties import examples

#: DeepSeek-V3's heads on one of eight ranks.
PROMPTS, DECODES = (LatentAttention(form, 16, 128, 64, 128, 512) for form in ("expanded", "absorbed"))
MIXED = Batch.of((1, 999), (1, 1999), (10, 0), (20, 100))


def test_decodes_share_latent_vectors_among_heads():
    kernel = DECODES.counted(MIXED)
    assert (kernel.sequences, kernel.queries, kernel.keys, kernel.pairs) == (2, 2, 3000, 3000)
    assert kernel.work.flops == 2 * 3000 * 16 * (576 + 512)
    assert kernel.work.reads == 2 * (2 * 16 * 576 + 3000 * 576)
    assert kernel.work.writes == 2 * 2 * 16 * 512


def test_prompts_have_keys_and_values_for_every_head():
    kernel = PROMPTS.counted(MIXED)
    assert (kernel.sequences, kernel.queries, kernel.keys) == (2, 30, 130)
    assert kernel.pairs == 55 + 20 * 100 + 210
    assert kernel.work.flops == 2 * kernel.pairs * 16 * (192 + 128)
    assert kernel.work.reads == 2 * 16 * (30 * 192 + 130 * 320)
    assert kernel.work.writes == 2 * 30 * 16 * 128


def test_an_fp8_cache_halves_what_decodes_read_of_it():
    plain, small = (LatentAttention("absorbed", 16, 128, 64, 128, 512, cache).counted(MIXED).work.reads
                    for cache in (DType.BF16, DType.FP8))
    assert plain - small == 3000 * 576


@pytest.mark.parametrize("layer, batch", [(PROMPTS, Batch.of((1, 5))), (DECODES, Batch.of((5, 0)))])
def test_a_batch_without_its_kind_launches_nothing(layer, batch):
    assert isinstance(OverBatch(layer), BatchDependent)
    assert OverBatch(layer).over(batch) is None


@given(st.lists(st.tuples(st.integers(2, 50), st.integers(0, 50)), min_size=1, max_size=4))
@examples(30)
def test_pairs_of_prompts_are_those_of_an_enumeration(chunks):
    """Token i of a chunk sees what is cached and the chunk up to itself."""
    pairs = sum(context + i + 1 for new, context in chunks for i in range(new))
    assert PROMPTS.counted(Batch.of(*chunks)).pairs == pairs


@pytest.mark.parametrize("tokens, rows", [("decodes", 2), ("prompts", 30), ("continued", 20), ("cached", 100)])
def test_rows_are_the_tokens_of_a_kind(tokens, rows):
    assert PerToken(Gemm(1, 8, 4), tokens).over(MIXED) == Gemm(rows, 8, 4)
    assert PerToken(BatchedGemm(3, 1, 8, 4), tokens).over(MIXED) == BatchedGemm(3, rows, 8, 4)


def test_products_side_by_side_are_as_much_work_as_apart():
    assert BatchedGemm(16, 64, 512, 128).work.flops == 16 * Gemm(64, 512, 128).work.flops
    assert BatchedGemm(16, 64, 512, 128).work.bytes == 16 * Gemm(64, 512, 128).work.bytes


def test_a_layer_of_decodes_and_one_of_prompts(model):
    """The same weights, expanded for 30 tokens and 100 cached ones, and absorbed into the queries of 2."""
    graph = model("deepseek-v3").graph(32, 4, Shard(tensor=8))
    layer = dict(list(graph.over(MIXED))[2:50])
    assert layer["kv_up"] == Gemm(30, 16 * 256, 512) and layer["context_kv_up"] == Gemm(100, 16 * 256, 512)
    assert layer["q_absorb"] == BatchedGemm(16, 2, 512, 128) and layer["v_up"] == BatchedGemm(16, 2, 128, 512)
    assert layer["context_gather"].work.bytes == 2 * 100 * 576 * 2
    assert layer["merge"].work.bytes == 3 * 20 * 16 * 128 * 2


def test_every_rank_keeps_the_whole_cache(model):
    """61 layers of 512 + 64 numbers."""
    v3 = model("deepseek-v3")
    assert v3.cache_per_token(Shard(tensor=8)) == v3.cache_per_token(Shard()) == 61 * 576 * 2
    fp8 = Shard(tensor=8, precision=Precision(cache=DType.FP8))
    assert v3.cache_per_token(fp8) == 61 * 576


def test_shared_experts_are_reduced_with_the_others(model):
    """One all-reduce for attention, one for experts, shared or not."""
    graph = model("deepseek-v3").graph(32, 4, Shard(tensor=8))
    labels = [label for label, _ in graph.over(MIXED) if label.endswith("all_reduce")]
    assert labels == ["embedding_all_reduce", *["o_proj_all_reduce", "down_all_reduce"] * 3,
                      *["o_proj_all_reduce", "experts_all_reduce"] * 58]
