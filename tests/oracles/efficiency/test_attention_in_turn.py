"""FlashAttention-3's batches of decodes and chunks, against a simulation of its blocks, which knows every context."""

from math import ceil

import numpy as np
import pytest

from ksim.compute.kernels.attention import AttentionLayer
from ksim.flow.batch import Batch
from ksim.foundation.units import DType
from ksim.oracles.compiled.arithmetic import Floats
from ksim.oracles.compiled.predictors import heads_of
from ksim.oracles.efficiency.attention import cut, timed
from ksim.oracles.efficiency.attention_grids import CONSTANTS, KEYS, ROWS, AttentionRates, Counts
from ksim.scenario.hardware import gpu_of


def formula(layer, gpu, *sequences):
    heads = heads_of(layer, gpu_of(gpu))
    counts = Counts(*layer.counts(Batch.of(*sequences)))
    rates = AttentionRates.of(CONSTANTS, heads, Floats)
    launches = cut(counts, heads, Floats)
    return timed(launches, counts, rates, Floats), launches[0].grid, rates, counts


def pieces(layer, sequences, piece):
    """Blocks of keys and bytes from memory of each thread block, in the order in which SMs take them up."""
    tokens = ROWS / (layer.heads // layer.kv_heads)
    for new, cached in sequences:
        tiles = ceil(new / tokens)
        splits = ceil(ceil((new + cached) / KEYS) / piece)
        for _ in range(layer.kv_heads * splits):
            for tile in reversed(range(tiles)):
                blocks = ceil((cached + min((tile + 1) * tokens, new)) / KEYS / splits)
                yield blocks, KEYS * blocks / tiles


def simulated(queue, unit, block, token, slots):
    """Seconds until the last of *queue* is done: an SM waits `block` seconds, then streams as fast as memory lets it.

    A block of keys takes an SM a *unit*, a key takes memory *token* seconds.
    """
    queue, seconds = list(queue)[::-1], 0.0
    waiting, work, keys = np.zeros((3, slots))
    while queue or waiting.any() or work.any():
        for free in np.flatnonzero((waiting == 0) & (work == 0)):
            if queue:
                waiting[free], (work[free], read) = block, queue.pop()
                keys[free] = read / work[free]
        streams = (waiting == 0) & (work > 0)
        rate = 1 / unit / max(1.0, float(keys[streams].sum()) * token / unit)
        step = min([*waiting[waiting > 0], *work[streams] / rate])
        seconds += step
        waiting = np.where(waiting > step * (1 + 1e-9), waiting - step, 0.0)
        work = np.where(streams, np.where(work > step * rate * (1 + 1e-9), work - step * rate, 0.0), work)
    return seconds


@pytest.mark.parametrize("heads, kv_heads", [(8, 1), (32, 8), (64, 8)])
def test_mixed_batches_take_as_long_as_a_simulation_of_their_blocks(heads, kv_heads):
    random, layer = np.random.default_rng(0), AttentionLayer(heads, kv_heads, 128, 0, DType.BF16)
    ratios = []
    for _ in range(12):
        decodes = [(1, int(cached)) for cached in random.exponential(1500, random.integers(4, 120))]
        chunks = [(int(new), 0) for new in random.integers(64, 2500, random.integers(1, 3))]
        time, grid, rates, counts = formula(layer, "h200", *decodes, *chunks)
        sms = simulated(pieces(layer, [*decodes, *chunks], grid.piece), ROWS * rates.pair + rates.step,
                        rates.chunk_block, rates.token / kv_heads, gpu_of("h200").sms)
        around = time.fixed + (counts.decodes + counts.chunk_queries) * rates.activations
        ratios.append(time.seconds / (around + sms))
    errors = np.log(ratios)
    assert abs(errors.mean()) < 0.05 and np.abs(errors).mean() < 0.09, ratios


def test_a_chunk_behind_decodes_adds_its_seconds():
    layer, decodes, chunk = AttentionLayer(32, 8, 128, 0, DType.BF16), [(1, 4000)] * 200, (3000, 0)
    streams, computes, both = (formula(layer, "h200", *batch)[0].seconds for batch in (
        decodes, [chunk], [*decodes, chunk]))
    assert both == pytest.approx(streams + computes, rel=0.1)


@pytest.mark.parametrize("decodes", [4, 40, 200])
@pytest.mark.parametrize("gpu", ["h200", "h100", "a100-80g"])
def test_a_batch_takes_no_less_for_a_short_chunk_more(gpu, decodes):
    layer, batch = AttentionLayer(32, 8, 128, 0, DType.BF16), [(1, 4000)] * decodes
    alone, with_chunk = formula(layer, gpu, *batch)[0], formula(layer, gpu, *batch, (2, 0))[0]
    assert with_chunk.seconds > 0.95 * alone.seconds  # a second wave is begun, and memory and SMs are joined otherwise
