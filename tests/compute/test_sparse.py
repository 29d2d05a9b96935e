"""The indexer's scores and sparse latent attention, by hand and against an enumeration."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.kernels.mla import BlockSparseLayer, ChoiceLayer, CompressedLayer, IndexScores, SparseLatentLayer
from ksim.flow.batch import Batch
from ksim.foundation.units import DType
from ksim.specs.shard import Precision, Shard
from tests.properties import examples

#: GLM-5's heads on one of eight ranks; decodes below and above the keys that are chosen, and a chunk that grows past.
SPARSE = SparseLatentLayer(8, 512, 64, chosen=2048)
BATCH = Batch.of((1, 999), (1, 8999), (100, 2000))


def test_a_query_attends_to_what_is_chosen_for_it():
    kernel = SPARSE.over(BATCH)
    growing = sum(range(2001, 2049))
    assert (kernel.queries, kernel.keys) == (102, 1000 + 9000 + 2100)
    assert kernel.pairs == 1000 + 2048 + growing + 52 * 2048
    assert kernel.work.flops == 2 * kernel.pairs * 8 * (576 + 512)
    assert kernel.work.reads == 2 * (102 * 8 * 576 + 12_100 * 576)  # each key from memory once
    assert kernel.gathered == kernel.pairs * 576 * 2


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 90)), min_size=1, max_size=4), st.integers(1, 80))
@examples(50)
def test_pairs_are_those_of_an_enumeration(sequences, chosen):
    pairs = sum(min(context + i + 1, chosen) for new, context in sequences for i in range(new))
    assert SparseLatentLayer(8, 512, 64, chosen).over(Batch.of(*sequences)).pairs == pairs


def test_the_indexer_scores_every_key():
    decodes, prompts = (IndexScores(part, 32, 128).counted(BATCH) for part in ("decodes", "prompts"))
    assert (decodes.queries, decodes.keys, decodes.pairs) == (2, 10_000, 10_000)
    assert (prompts.queries, prompts.keys, prompts.pairs) == (100, 2100, sum(range(2001, 2101)))
    assert decodes.work.flops == 2 * 10_000 * 32 * 128 and decodes.work.dtype is DType.FP8
    assert decodes.work.reads == 2 * 32 * 128 + 10_000 * 132
    assert IndexScores("prompts", 32, 128).counted(Batch.of((1, 5))) is None


def test_choosing_reads_all_scores():
    assert ChoiceLayer("decodes", 2048).over(BATCH).read_bytes == 4 * 10_000
    assert ChoiceLayer("decodes", 2048).over(Batch.of((5, 0))) is None


def test_a_token_caches_the_indexers_key_too(model):
    """132 bytes of it; in FP8, vLLM keeps 656 bytes of the rest."""
    glm = model("glm-5")
    assert glm.cache_per_token(Shard(tensor=8)) == 78 * (2 * 576 + 132)
    assert glm.cache_per_token(Shard(tensor=8, precision=Precision(cache=DType.FP8))) == 78 * (656 + 132)


def test_every_rank_scores_with_all_heads(model):
    graph = model("glm-5").graph(BATCH.tokens, 3, Shard(tensor=8))
    layer = dict(list(graph.over(BATCH))[2:50])
    assert layer["index_decodes"].heads == 32 and layer["attention"].heads == 8
    assert layer["index_q"].n == 32 * 128 and layer["q_absorb"].m == BATCH.tokens


@pytest.mark.parametrize(("stride", "chosen"), [(0, 0), (4, 3), (4, 512), (128, 0)])
def test_a_query_sees_a_window_and_compressed_vectors_before_it(stride, chosen):
    """DeepSeek-V4: one vector for every *stride* tokens, all of them or the chosen ones."""
    layer = CompressedLayer(8, 512, 16, stride, chosen)

    def sees(tokens: int) -> int:
        compressed = tokens // stride if stride else 0
        return min(tokens, 16) + (min(compressed, chosen) if chosen else compressed)

    for new, context in ((1, 0), (1, 700), (37, 0), (300, 11), (3, 126)):
        assert layer.over(Batch.of((new, context))).pairs == sum(map(sees, range(context + 1, context + new + 1)))


def test_blocks_of_keys_cost_no_more_than_those_that_are_chosen():
    """MiniMax-M3: 16 blocks of 128 keys of one KV head for all 16 query heads that share it."""
    short, long, longer = (BlockSparseLayer(64, 4, 128, 2048).over(Batch.of((1, context)))
                           for context in (99, 9_999, 99_999))
    assert short.pairs == 100 and long == evolve(longer, keys=long.keys)
    assert long.work.reads == longer.work.reads == 64 * 128 * 2 + 2048 * 4 * 2 * 128 * 2
