"""Batches whose decodes verify drafted tokens, and names of blocks that stand for the token after them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.kernels import counts
from ksim.compute.kernels.attention import COUNTS, AttentionLayer
from ksim.compute.kernels.mla import IndexScores, LatentAttention, SparseLatentLayer
from ksim.compute.kernels.states import DeltaRule
from ksim.cost.graphs import Graphs, Launching
from ksim.flow.batch import Batch, Batches
from ksim.flow.request import Request
from ksim.scenario.defaults import capture_sizes
from tests.properties import examples

contexts = st.lists(st.integers(0, 300), min_size=1, max_size=6)
chunks = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 300)), max_size=3)


@given(wide=contexts, more=chunks, width=st.integers(2, 6), window=st.sampled_from([0, 0, 1, 3, 50, 128]))
@examples(60)
def test_attention_counts_each_query_and_the_keys_that_it_sees(wide, more, width, window):
    batch = Batch.of(*[(width, context) for context in wide], *more, width=width)
    layer = AttentionLayer(8, 2, 64, window)
    kernel, one_by_one = layer.over(batch), layer.over(Batch(Batch.of().contexts, (
        *batch.chunks, *((width, context) for context in batch.contexts)), batch.samples, batch.tokens))
    assert kernel == one_by_one
    swept = layer.sweep(Batches.of([batch, Batch.of((1, 7))])).kernel
    assert [np.asarray(getattr(swept, name))[0] for name in COUNTS] == [getattr(kernel, name) for name in COUNTS]


@given(wide=contexts, width=st.integers(1, 6))
@examples(40)
def test_queries_of_other_kernels_are_those_of_as_many_steps_of_one_token(wide, width):
    """But for keys, which the queries of a sequence share."""
    batch = Batch.of(*[(width, context) for context in wide], width=width)
    steps = [Batch.of(*[(1, context + step) for context in wide]) for step in range(width)]
    sequences, queries, keys, pairs = counts("decodes", batch)
    each = [counts("decodes", step) for step in steps]
    assert (sequences, queries, pairs) == (len(wide), sum(one[1] for one in each), sum(one[3] for one in each))
    assert keys == each[-1][2]
    sparse = SparseLatentLayer(16, 512, 64, 64)
    assert sparse.over(batch).pairs == sum(sparse.over(step).pairs for step in steps)
    index = IndexScores("decodes", 4, 128)
    assert index.counted(batch).pairs == sum(index.counted(step).pairs for step in steps)
    latent = LatentAttention("absorbed", 16, 128, 64, 128, 512)
    assert latent.counted(batch).work.flops == sum(latent.counted(step).work.flops for step in steps)
    assert latent.counted(batch).work.bytes <= sum(latent.counted(step).work.bytes for step in steps)
    delta = DeltaRule("decodes", 8, 4, 128)
    assert delta.counted(batch).work.writes == sum(delta.counted(step).work.writes for step in steps)


def test_a_batch_has_a_row_of_logits_for_each_draft():
    batch = Batch.of((4, 100), (4, 7), (30, 0), width=4)
    assert (batch.sequences, batch.drafts, batch.logits, batch.tokens) == (3, 6, 9, 38)
    assert batch.prompts == ((-1, 30, 0),)


def test_verifications_are_counted_by_how_many_they_accept():
    first = Batch(Batch.of().contexts, ((3, 5), (3, 9)), 2, 6, drafts=4, accepted=(2, 0))
    table = Batches.of([first, Batch.of((1, 3))]).verifications(2)
    assert table.tolist() == [[2, 1, 1], [0, 0, 0]]


def test_full_graphs_are_of_whole_verifications_alone():
    graphs = Graphs(full=(4, 8, 16), piecewise=(1, 2, 4, 8, 16), width=4)
    assert graphs.of(Batch.of((4, 9), (4, 5), (4, 5), width=4)) == (Launching.FULL, 16)
    assert graphs.of(Batch.of((1, 9), (1, 5))) == (Launching.PIECEWISE, 2)
    assert graphs.of(Batch.of((4, 9), (1, 5), width=4)) == (Launching.PIECEWISE, 8)


@given(seqs=st.integers(1, 1200), width=st.integers(2, 9), tokens=st.sampled_from([64, 512, 8192]))
@examples(30)
def test_sizes_of_whole_batches_of_verifications_are_captured(seqs, width, tokens):
    """As vLLM 0.33 has them (vllm/config/vllm.py, `_set_cudagraph_sizes`)."""
    most = min(seqs * width * 2, 512, tokens)
    sizes = capture_sizes(seqs, tokens, width=width)
    assert max(sizes) <= most
    assert {number * width for number in (1, 2, 4, min(seqs, 512)) if number <= seqs and number * width <= most} <= {
        *sizes}
    assert {*capture_sizes(seqs * width, tokens)} <= {*sizes}


@given(prompt=st.integers(1, 90), shared=st.integers(0, 90), size=st.sampled_from([4, 16]),
       chunk=st.sampled_from([4, 16, 32]))
@examples(60)
def test_a_key_that_covers_the_next_token_is_shared_where_the_next_token_is(prompt, shared, size, chunk):
    names = [(0, place) if (place + 1) * chunk <= shared else (1, place) for place in range(-(-prompt // chunk))]
    own = Request(1, 0.0, prompt, 10, [(0, place) for place in range(len(names))], chunk)
    other = Request(2, 0.0, prompt, 10, names, chunk)
    ahead, plain = (own.keyed_ahead(size).content(size), other.keyed_ahead(size).content(size)), (
        own.content(size), other.content(size))
    common = [sum(1 for _ in _prefix(*pair)) for pair in (ahead, plain)]
    known = min(own.named, prompt)
    assert common[0] == min(common[1], max(0, (known - 1) // size)) - (
        0 < common[1] <= (known - 1) // size and common[1] * size == shared // chunk * chunk < known)


def _prefix(one, other):
    for left, right in zip(one, other, strict=False):
        if left != right:
            return
        yield left
