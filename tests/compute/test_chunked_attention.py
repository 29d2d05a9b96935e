"""Attention within chunks: every query sees the tokens of its own chunk up to itself, whatever the batch."""

from hypothesis import given
from hypothesis import strategies as some

from ksim.compute.kernels.attention import Attention, AttentionLayer
from ksim.compute.notation.attention import ChunkedLayer
from ksim.flow.batch import Batch, Batches, Contexts
from ksim.specs.shard import Shard
from tests.models import model_of
from tests.properties import examples

SHAPE = (8, 2, 64)
sequences = some.lists(some.tuples(some.integers(1, 40), some.integers(0, 100)), min_size=1, max_size=5)


@examples(40)
@given(sequences, some.integers(1, 30), some.integers(1, 3))
def test_pairs_are_those_within_chunks(pairs, chunk, width):
    batch = Batch.of(*pairs, width=width)
    kernel = ChunkedLayer(*SHAPE, chunk=chunk).over(batch)
    assert kernel.pairs == sum((context + i) % chunk + 1 for new, context in pairs for i in range(new))
    assert kernel.queries == batch.tokens


@examples(20)
@given(sequences)
def test_a_chunk_that_nobody_fills_is_no_chunk(pairs):
    batch = Batch.of(*pairs)
    assert ChunkedLayer(*SHAPE, chunk=1000).over(batch) == AttentionLayer(*SHAPE).over(batch)


def test_many_batches_are_counted_as_one_at_a_time():
    layer = ChunkedLayer(*SHAPE, chunk=16)
    batches = [Batch(Contexts((3, 40)), ((20, 10),), 3, 22), Batch(Contexts((15, 16)), (), 2, 2)]
    sweep = layer.sweep(Batches.of(batches))
    rows = [sweep[0], sweep[1]]
    assert [row.pairs for row in rows if isinstance(row, Attention)] == [layer.over(batch).pairs for batch in batches]


def test_llama_4_attends_to_chunks_in_three_of_four_layers():
    chunks = [layer.chunk for layer in model_of("llama-4-scout").cache_by_layer(Shard())]
    assert chunks == [8192, 8192, 8192, 0] * 12
