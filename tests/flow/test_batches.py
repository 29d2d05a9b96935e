"""Columns over batches count what the batches count one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.kernels.attention import AttentionLayer
from ksim.flow.batch import Batch, Batches, BatchRuns, Contexts, Offsets

sequences = st.tuples(st.integers(1, 600), st.integers(0, 9000))
windows = st.lists(st.lists(sequences, max_size=6).map(lambda several: Batch.of(*several)), min_size=1, max_size=8)


@given(offsets=st.lists(st.integers(0, 5000)), shift=st.integers(0, 3000), most=st.integers(0, 6000))
def test_a_capped_sum_counts_none_for_more_than_the_cap(offsets, shift, most):
    assert Offsets(offsets).capped(most) == sum(min(each, most) for each in offsets)
    assert Contexts(offsets, shift).capped(most) == sum(min(each + shift, most) for each in offsets)


@given(offsets=st.lists(st.integers(-50, 50)), more=st.lists(st.integers(-50, 50), min_size=1), data=st.data())
def test_offsets_that_come_of_others_know_what_new_ones_know(offsets, more, data):
    grown = Offsets(offsets).plus(more)
    shrunk = grown.without(data.draw(st.integers(0, len(grown) - 1)))
    for found in (grown, shrunk):
        assert (found.sum, found.most) == (sum(found), max(found, default=0))


@given(several=windows, window=st.sampled_from([0, 128, 4096]))
def test_attention_of_many_batches_is_that_of_each(several, window):
    layer = AttentionLayer(32, 8, 128, window)
    sweep = layer.sweep(Batches.of(several))
    assert [*sweep] == [sweep[row] for row in range(len(several))] == [layer.over(batch) for batch in several]
    for name in ("flops", "bytes", "padded"):
        amounts = [getattr(layer.over(batch).work, name) for batch in several]
        assert np.broadcast_to(getattr(sweep.kernel.work, name), len(several)).tolist() == amounts


@given(several=windows)
def test_batches_know_how_many_sequences_they_have(several):
    assert Batches.of(several).sequences.tolist() == [batch.sequences for batch in several]


@given(several=windows)
def test_counts_are_those_of_each_batch(several):
    counted = Batches.of(several)
    assert Batches.of(counted) is counted and [*counted] == several
    assert counted.tokens.tolist() == [batch.tokens for batch in several]
    assert counted.samples.tolist() == [batch.samples for batch in several]
    assert counted.total.tolist() == [batch.contexts.total for batch in several]
    assert counted.prompts.counts.tolist() == [len(batch.chunks) for batch in several]
    chunks = [chunk for batch in several for chunk in batch.chunks]
    assert list(zip(counted.chunks.new.tolist(), counted.chunks.context.tolist(), strict=True)) == chunks


def told(batches):
    """What *batches* are, however their contexts are written."""
    return [([*batch.contexts], batch.chunks, batch.samples, batch.tokens) for batch in batches]


@given(several=windows, decoding=st.lists(st.integers(1, 500), min_size=1, max_size=5), counts=st.lists(
    st.integers(1, 9), max_size=4), first=st.integers(0, 60))
def test_runs_of_batches_are_those_batches(several, decoding, counts, first):
    runs, apart = BatchRuns.of(several), [*several]
    for count in counts:
        batch = Batch.of(*((1, context) for context in decoding))
        runs.append(batch)
        runs.follow(batch, count)
        apart += [batch, *(Batch.of(*((1, context + step) for context in decoding)) for step in range(1, count + 1))]
    assert told(runs) == told(runs[row] for row in range(len(runs))) == told(apart)
    ours, theirs = Batches.of(runs), Batches.of(apart)
    for name in ("tokens", "samples", "decodes", "total", "longest", "drafts", "sequences"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    np.testing.assert_array_equal(ours.chunks.rows, theirs.chunks.rows)
    first = min(first, len(apart))
    assert told(runs.cut(first)) == told(apart[:first]) and told(runs) == told(apart[first:])


def test_decodes_go_on_after_a_batch_with_prompts_without_them():
    first = Batch.of((1, 7), (300, 0), samples=1)
    runs = BatchRuns.of([first])
    runs.follow(first, 2)
    assert told([*runs][1:]) == told([Batch.of((1, 8)), Batch.of((1, 9))])


def test_decodes_go_on_after_a_batch_that_was_taken_away():
    runs = BatchRuns.of([Batch.of((1, 7))])
    runs.cut(1)
    runs.follow(Batch.of((1, 7)), 2)
    assert told(runs) == told([Batch.of((1, 8)), Batch.of((1, 9))])
