"""Attention staged for the batches that come is the attention that was written down."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from ksim.compute.kernels.attention import COUNTS, AttentionLayer
from ksim.flow.batch import Batch
from ksim.foundation.units import DType
from ksim.oracles.compiled.arithmetic import COUNT_INTERVALS, Arrays, Floats, StagedFormula, batch_kinds
from ksim.oracles.compiled.predictors import heads_of
from ksim.oracles.efficiency.attention import cut, features, timed
from ksim.oracles.efficiency.attention_grids import CONSTANTS, AttentionRates, Counts
from ksim.scenario.hardware import gpu_of

batches = st.builds(
    lambda contexts, times, chunks: Batch.of(*[(1, context) for context in contexts] * times, *chunks),
    st.lists(st.integers(0, 60_000), max_size=12), st.sampled_from([1, 2, 30]),
    st.lists(st.tuples(st.integers(2, 4000), st.integers(0, 60_000)), max_size=3))
layers = st.builds(AttentionLayer, st.sampled_from([8, 32, 40]), st.sampled_from([1, 4, 8]),
                   st.sampled_from([64, 128, 256]), st.sampled_from([0, 128, 4096]),
                   st.sampled_from([DType.BF16, DType.FP8]))
gpus = st.sampled_from(["h200", "a100-80g", "l40s", "b200", "b300"])


def physics(layer, gpu):
    heads = heads_of(layer, gpu_of(gpu))
    rates = AttentionRates.of(CONSTANTS, heads, Floats)

    def formula(m, *counts):
        several = Counts(*counts)
        time = timed(cut(several, heads, m), several, rates, m)
        return time.seconds, time.compute > time.memory, *features(several, heads, time, m)

    return formula


@given(layer=layers, gpu=gpus, batch=batches)
def test_staged_attention_of_a_batch_is_the_unstaged_one(layer, gpu, batch):
    assume(batch.sequences)
    formula, counts = physics(layer, gpu), layer.counts(batch)
    staged, expected = StagedFormula(formula, Floats), formula(Floats, *counts)
    assert staged[counts[0] > 0, counts[3] > 0](*counts) == expected
    assert staged[None, None](*counts) == expected


@given(layer=layers, gpu=gpus, several=st.lists(batches.filter(lambda batch: batch.sequences), min_size=1, max_size=5))
def test_staged_attention_of_many_batches_is_the_unstaged_one(layer, gpu, several):
    columns = np.array([layer.counts(batch) for batch in several], dtype=np.float64).T
    formula = physics(layer, gpu)
    found, expected = StagedFormula(formula, Arrays)[batch_kinds(columns)](*columns), formula(Arrays, *columns)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(np.broadcast_to(one, len(several)), np.broadcast_to(other, len(several)), equal_nan=True)


@given(batch=batches, layer=layers)
def test_counts_lie_within_their_bounds(batch, layer):
    counts = dict(zip(COUNTS, layer.counts(batch), strict=True))
    for name, number in counts.items():
        least, most = COUNT_INTERVALS[counts["chunks" if name.startswith("chunk") else "decodes"] > 0]
        assert least <= number <= most
