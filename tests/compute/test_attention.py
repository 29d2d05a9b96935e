"""Attention's FLOP and bytes, by hand and against an enumeration of (query, key) pairs."""

import pytest

from ksim.compute.kernels.attention import Attention, AttentionLayer
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

GQA = AttentionLayer(heads=32, kv_heads=8, head_dim=128)


def enumerated(batch: Batch, window: int) -> tuple[int, int, int]:
    """Queries, different keys and pairs of *batch*, one by one."""
    queries = keys = pairs = 0
    for new, context in [*((1, context) for context in batch.contexts), *batch.chunks]:
        seen = [(query, key) for query in range(context, context + new)
                for key in range(query + 1) if not window or key > query - window]
        queries += new
        keys += len({key for _, key in seen})
        pairs += len(seen)
    return queries, keys, pairs


def test_decode():
    """One query sees 1,000 keys: 4 x 1000 x 32 x 128 FLOP, 2 x 1000 x 8 x 128 numbers of K and V."""
    kernel = GQA.over(Batch.of((1, 999)))
    assert kernel.work.flops == 16_384_000
    assert kernel.work.reads == 8_192 + 4_096_000
    assert kernel.work.writes == 8_192


def test_a_causal_chunk_after_a_context():
    """4 tokens after 6 see 7, 8, 9 and 10 keys."""
    kernel = GQA.over(Batch.of((4, 6)))
    assert (kernel.queries, kernel.keys, kernel.pairs) == (4, 10, 34)
    assert kernel.work.flops == 557_056  # 4 x 34 x 32 x 128
    assert kernel.work.reads == 32_768 + 40_960  # 4 x 32 x 128 queries; 2 x 10 x 8 x 128 keys and values
    assert kernel.work.writes == 32_768


def test_a_window_bounds_what_each_query_sees():
    """4 tokens after 6, seeing 4 back: 16 pairs over keys 3 to 9."""
    kernel = AttentionLayer(32, 8, 128, window=4).over(Batch.of((4, 6)))
    assert (kernel.keys, kernel.pairs) == (7, 16)


def test_a_window_that_fills_up_within_the_chunk():
    """6 tokens from the start, seeing 4 back: 1 + 2 + 3 + 4 + 4 + 4."""
    kernel = AttentionLayer(32, 8, 128, window=4).over(Batch.of((6, 0)))
    assert (kernel.keys, kernel.pairs) == (6, 18)


def test_a_mixed_batch_adds_up():
    kernel = GQA.over(Batch.of((1, 99), (1, 9), (10, 0), (5, 20)))
    assert kernel.sequences == 4
    assert kernel.queries == 17
    assert kernel.keys == 100 + 10 + 10 + 25
    assert kernel.pairs == 100 + 10 + 55 + 115


def test_what_stands_out_in_a_batch():
    kernel = GQA.over(Batch.of((1, 99), (1, 9), (10, 0), (5, 20)))
    assert (kernel.decodes, kernel.decode_keys, kernel.decode_longest) == (2, 110, 100)
    assert (kernel.chunks, kernel.chunk_queries, kernel.chunk_most, kernel.chunk_longest) == (2, 15, 10, 25)
    assert kernel.chunk_unmasked_pairs == 10 * 10 + 5 * 25


@pytest.mark.parametrize("window", [0, 1, 4, 7, 100])
@pytest.mark.parametrize("batch", [
    Batch.of((1, 0)), Batch.of((1, 50)), Batch.of((8, 0)), Batch.of((3, 4)), Batch.of((5, 30)),
    Batch.of((1, 3), (1, 60), (12, 0), (4, 9), (2, 2)),
], ids=str)
def test_counts_equal_those_of_enumerated_pairs(batch, window):
    kernel = AttentionLayer(8, 2, 64, window).over(batch)
    assert (kernel.queries, kernel.keys, kernel.pairs) == enumerated(batch, window)


def test_heads_that_share_keys_read_them_once():
    batch = Batch.of((1, 999))
    shared = AttentionLayer(32, 8, 128).over(batch).work
    apart = AttentionLayer(32, 32, 128).over(batch).work
    assert shared.flops == apart.flops
    assert apart.reads - shared.reads == 2 * 1000 * 24 * 128 * 2


def test_a_cache_in_fp8_takes_half():
    bf16 = GQA.over(Batch.of((1, 999))).work
    fp8 = AttentionLayer(32, 8, 128, cache=DType.FP8).over(Batch.of((1, 999))).work
    assert bf16.reads - fp8.reads == 1000 * 2 * 8 * 128
    assert bf16.writes == fp8.writes


def test_blocks():
    """A decode is one tile per KV head; 100 tokens of 4 heads each fill 4 tiles of 128 rows."""
    kernel = GQA.over(Batch.of((1, 99), (100, 0)))
    whole, half, *_ = kernel.launches(132)
    assert (whole.blocks, half.blocks) == (40, 80)
    assert half.extra_bytes == 2 * 2 * 101 * 32 * 128 * 4  # two partial results, written and read in FP32


def test_a_long_sequence_among_short_ones_is_the_longest_block():
    kernel = GQA.over(Batch.of((1, 9_999), *[(1, 99)] * 199))
    launch = kernel.launches(132)[0]
    assert launch.longest == 4 * 128 * 10_000 * 64
    assert launch.busiest(132) == pytest.approx(10_000 / ((10_000 + 199 * 100) / 200))


def test_an_empty_batch_is_no_work():
    kernel = GQA.over(Batch.of())
    assert isinstance(kernel, Attention)
    assert kernel.work.flops == kernel.work.bytes == 0
    assert kernel.launches(132)[0].waves(132) == 0
