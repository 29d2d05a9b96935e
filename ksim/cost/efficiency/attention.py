"""Paged attention from the data sheet: tiles, splits and waves of the kernels that engines choose.

Which kernel runs is known from the GPU's architecture (vLLM's default backends):

* Hopper: FlashAttention-3, one launch for the whole ragged batch.  Query heads of a KV head share the rows of a tile;
  contexts are split into pieces, which one long chunk in the batch turns off for all.
* Data-centre Blackwell: FlashInfer's TensorRT-LLM kernels, one launch for decodes and one for chunks.
* Elsewhere: FlashAttention-2.  A batch of decodes packs heads and splits contexts; with a chunk in it it does neither.

A thread block takes a tile of query rows over blocks of 128 keys.  Time is a start-up, and the larger (in a p-norm) of
what the SMs need -- work in waves, and what sticks out at the end -- and of the stream of keys and values.  That comes
from device memory or, as far as what is touched between two uses of the cache (`footprint`) fits there, from the L2
cache.  What no data sheet states is in `Constants`: shares, and latencies in clock cycles, the same for every GPU.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from ksim.cost.efficiency.attention_grids import (
    KEYS,
    Arrays,
    Floats,
    Grid,
    chunk_grid,
    decode_grid,
    even,
    flash2,
    flash3,
    length,
    tokens,
)
from ksim.cost.efficiency.physics import Array, Physics
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu

__all__ = ["COLUMNS", "CONSTANTS", "FEATURES", "LAUNCHES", "Constants", "physics"]

#: What a shape says.  Of the sequences with one new token (`decode`): how many, the keys they read in all (their own
#: included) and the most of one.  Of the others (`chunk`): how many, their new tokens, their keys, their causal (query,
#: key) pairs, new tokens times keys summed, the most new tokens of one and the most keys that one query sees.
#: `cache_bytes` is the size of an element of the cache; `footprint` the bytes touched before the cache is read again,
#: infinite in serving; `writes` is 1 where the kernel that writes new keys and values is timed along, else 0.
COLUMNS: tuple[str, ...] = (
    "decodes", "decode_keys", "decode_longest",
    "chunks", "chunk_queries", "chunk_keys", "chunk_pairs", "chunk_reach", "chunk_most", "chunk_longest",
    "heads", "kv_heads", "head_dim", "cache_bytes", "footprint", "writes",
)
#: Logarithms are to base 2; `log_keys` in blocks of 128, `log_head_dim` in 128.
FEATURES: tuple[str, ...] = (
    "log_sequences", "log_queries", "log_keys", "log_kv_heads", "log_group", "log_head_dim",
    "log_waves", "log_bound", "log_start", "log_resident", "chunk_share",
)
LAUNCHES: tuple[str, ...] = ("whole", "split")

#: Shapes priced one after the other, as floats; more go through arrays, which cost as much as about eight.
SINGLY = 6
#: Exponentials per clock and SM (CUDA programming guide, arithmetic instructions); Blackwell Ultra has twice as many.
EXPONENTIALS, MORE_EXPONENTIALS = 16.0, {"B300": 32.0, "GB300": 32.0}
#: Bytes per clock and SM from the L2 cache (NVIDIA, A100 white paper).
L2_BYTES = 64.0
#: What sticks out of a random order of unequal pieces, in units of the longest less half the mean, as SMs and as memory
#: feel it, and the pieces that rounding up adds to a context of random length.  Simulated: pieces of random contexts,
#: first come first served on 132 SMs that share a memory; nothing measured went into them.
RAGGED_TAIL, RAGGED_STREAM, RAGGED_PIECE = 0.8, 0.3, 0.5
#: Seconds after which a power limit is felt.
GOVERNOR = 2e-3


@frozen
class Constants:
    """What no data sheet states; latencies in clock cycles.

    `start` of the kernel, `write` of the one that writes the cache, `combine`
    of the one that adds up splits and `combine_split` for each of them, `copy`
    of those that reorder heads; `block` (of the kernel for decodes) and
    `chunk_block` around the loop of a thread block, `step` for each block of
    keys in it.  `tensor` is the share of the tensor peak inside the loop,
    `exponential` how many times over an exponential is paid, `governor` how much
    slower a long kernel runs.  `partial` is the share of a partial wave that is
    waited for, `tail` that of a chunk's longest piece.  `memory` and `l2` are
    shares of bandwidths, `resident` the share of the L2 cache that data may
    fill, `width` how gradually it overflows; `activations`, `written` and
    `reread` weigh the bytes of queries and outputs, of new keys and values, and
    of those that every tile reads again.  `norm` joins SMs and memory; `hidden`
    is the part of a thread block's latency that its stream does not hide.
    """

    start: float = 8390.0
    write: float = 5230.0
    combine: float = 4510.0
    combine_split: float = 321.0
    copy: float = 7970.0
    block: float = 6060.0
    chunk_block: float = 4540.0
    step: float = 179.0
    tensor: float = 1.03
    exponential: float = 0.54
    governor: float = 0.05
    partial: float = 0.88
    tail: float = 1.5
    memory: float = 0.88
    l2: float = 0.18
    resident: float = 1.1
    width: float = 0.05
    activations: float = 0.58
    written: float = 0.92
    norm: float = 2.27
    hidden: float = 0.78
    reread: float = 0.63


#: Fitted to all nine GPUs of AIConfigurator's tables (095f58a), vLLM's bf16 rows of head dimension 128.
CONSTANTS = Constants()


@frozen
class _Time:
    """Of one launch, in seconds: of all, of the SMs, of memory, and of what takes as long for any shape."""

    seconds: Any
    compute: Any
    memory: Any
    fixed: Any
    waves: Any
    split: Any
    chunk_share: Any


def physics(gpu: Gpu, shapes: Mapping[str, Any], constants: Constants = CONSTANTS) -> Physics:
    """The reference time of attention over the batches that *shapes* describes by `COLUMNS`.

    What all have alike may be a number.
    """
    known = {name: shape if isinstance(shape := shapes[name], float) else np.asarray(shape, dtype=np.float64)
             for name in COLUMNS}
    rows = max(shape.size for shape in known.values() if not isinstance(shape, float))
    if rows <= SINGLY:
        columns = [[shape] * rows if isinstance(shape, float) else shape.tolist() for shape in known.values()]
        each = [_physics(gpu, dict(zip(COLUMNS, row, strict=True)), constants, Floats)
                for row in zip(*columns, strict=True)]
        table = np.array(each, dtype=np.float64).reshape(rows, 5 + len(FEATURES)).T
    else:
        table = np.empty((5 + len(FEATURES), rows))
        for column, found in zip(table, _physics(gpu, known, constants, Arrays), strict=True):
            column[:] = found
    seconds, compute, memory, waves, split = table[:5]
    idle: Array = 1 - waves / np.maximum(np.ceil(waves), 1.0)
    return Physics(seconds, np.maximum(compute, memory), compute, memory, waves, idle, split.astype(np.intp),
                   np.ascontiguousarray(table[5:].T))


def _physics(gpu: Gpu, s: Mapping[str, Any], k: Constants, m: Any) -> tuple[Any, ...]:
    """Five columns of the result, then the features."""
    if gpu.architecture == "hopper":
        time = _launch(gpu, s, k, m, flash3(gpu, s, m))
    elif gpu.architecture == "blackwell":
        decodes, chunks = _only(s, "decode"), _only(s, "chunk")
        time = _in_turn(_launch(gpu, decodes, k, m, decode_grid(gpu, decodes, m)),
                        _launch(gpu, chunks, k, m, chunk_grid(chunks, m)), s, m)
    else:
        time = _launch(gpu, s, k, m, flash2(gpu, s, m))
    sequences = s["decodes"] + s["chunks"]
    queries, keys = s["decodes"] + s["chunk_queries"], s["decode_keys"] + s["chunk_keys"]
    return (time.seconds, time.compute, time.memory, time.waves, m.where(time.split, 1.0, 0.0),
            m.log2(sequences), m.log2(queries / sequences), m.log2(keys / (KEYS * sequences)),
            m.log2(s["kv_heads"]), m.log2(s["heads"] / s["kv_heads"]), m.log2(s["head_dim"] / 128),
            m.log2(time.waves), m.log2(time.compute / time.memory), m.log2(time.fixed / time.seconds),
            m.log2(m.minimum(m.maximum(s["footprint"] / gpu.l2, 2.0**-5), 2.0**5)), time.chunk_share)


def _only(s: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The shape without its chunks, or without its decodes."""
    gone = "chunk" if kind == "decode" else "decode"
    return {name: value * 0.0 if name.startswith(gone) else value for name, value in s.items()}


def _in_turn(decodes: _Time, chunks: _Time, s: Mapping[str, Any], m: Any) -> _Time:
    """Two launches one after the other, of which either may have nothing to do."""
    first, second = m.where(s["decodes"] > 0, 1.0, 0.0), m.where(s["chunks"] > 0, 1.0, 0.0)
    compute = decodes.compute * first + chunks.compute * second
    return _Time(
        decodes.seconds * first + chunks.seconds * second, compute, decodes.memory * first + chunks.memory * second,
        decodes.fixed * first + chunks.fixed * second, decodes.waves * first + chunks.waves * second,
        decodes.split & (s["decodes"] > 0), chunks.compute * second / compute,
    )


def _launch(gpu: Gpu, s: Mapping[str, Any], k: Constants, m: Any, grid: Grid) -> _Time:
    """The time of one launch.

    Decodes come first in a batch: chunks fill the SMs that unequal decodes leave
    over, so those matter only where nothing follows them.  The tiles of a chunk
    run from the longest to the shortest, which is then all that a partial wave
    waits for.
    """
    slots, unequal = gpu.sms * grid.resident, m.where(even(s), 0.0, 1.0)
    pieces, mean, decode_pieces, decode_mean, chunk_work, chunk_mean = _pieces(s, m, grid)
    decode_longest = m.where(unequal > 0, m.minimum(grid.piece, m.ceil(s["decode_longest"] / KEYS)), decode_mean)
    chunk_longest = m.where(s["chunks"] > 0, m.minimum(grid.piece, m.ceil(s["chunk_longest"] / KEYS)) + 0.5, 0.0)
    longest = m.maximum(m.maximum(decode_longest, chunk_longest), 0.5)
    shortest = m.where(s["chunks"] > 0, (s["chunk_longest"] - s["chunk_most"]) / KEYS + 1, mean)
    shortest = m.where(s["chunk_longest"] < s["chunk_most"], longest, shortest)  # a window makes all tiles alike
    waves, unit = pieces / slots, _unit(gpu, s, k, m, grid, mean * pieces / slots)
    block = m.where(grid.decodes, k.block, k.chunk_block) / gpu.clock
    partial = k.partial * (m.ceil(waves) - waves) * m.minimum(1.0, shortest / longest)
    sticks_out = m.where(waves > 1, 1.0, 0.0)
    stream, decode_stream, activations, written, again = _memory(gpu, s, k, chunk_work)
    compute = (m.where(waves < 1, 1.0, waves + partial) * (mean * unit + block)
               + sticks_out * k.tail * m.maximum(chunk_longest - chunk_mean, 0.0) * unit)
    memory = stream + again + k.hidden * block
    tail = sticks_out * unequal * RAGGED_TAIL * (
        decode_longest * unit + block - (decode_mean * unit + block) / 2)
    decodes = _join(decode_pieces / slots * (decode_mean * unit + block) + tail,
                    decode_stream + k.hidden * block + RAGGED_STREAM * tail, k.norm)
    loop = m.maximum(_join(compute, memory, k.norm), m.where(s["decodes"] > 0, decodes, 0.0))
    loop = m.maximum(loop, longest * unit + block)
    around = m.where(grid.combines > 0, k.combine + k.combine_split * grid.combines, 0.0) + k.copy * grid.copies
    fixed = (k.start + s["writes"] * k.write + around) / gpu.clock + s["writes"] * written
    return _Time(fixed + loop + activations, compute, memory, fixed, waves, grid.split,
                 chunk_work / m.maximum(mean * pieces, 1.0))


def _pieces(s: Mapping[str, Any], m: Any, grid: Grid) -> tuple[Any, ...]:
    """Pieces and their mean length in blocks of keys: of all, of the decodes; the chunks' work and mean length."""
    blocks = length(s, m)
    splits = m.maximum(m.where(even(s), m.ceil(blocks / grid.piece), (blocks - 0.5) / grid.piece + RAGGED_PIECE), 1.0)
    decodes = grid.decode_tiles * splits
    # A query sees `seen` keys on average, and a tile those of its last query, whole blocks of them.
    seen = s["chunk_pairs"] / m.maximum(s["chunk_queries"], 1.0)
    chunk_blocks = m.maximum((seen + m.minimum(grid.tokens, m.maximum(tokens(s, m), 1.0)) / 2) / KEYS + 0.5, 1.0)
    reach = m.minimum(s["chunk_keys"] / m.maximum(s["chunks"], 1.0), s["chunk_longest"]) / KEYS
    chunks = grid.chunk_tiles * m.maximum(m.ceil(reach / grid.piece), 1.0)
    work = grid.chunk_tiles * chunk_blocks
    pieces = m.maximum(decodes + chunks, 1.0)
    mean = (grid.decode_tiles * blocks + work) / pieces
    return pieces, mean, decodes, blocks / splits, work, work / m.maximum(chunks, 1.0)


def _unit(gpu: Gpu, s: Mapping[str, Any], k: Constants, m: Any, grid: Grid, blocks: Any) -> Any:
    """Seconds of a tile on a block of keys where an SM works on so many *blocks*: products, exponentials, latency."""
    exponentials = gpu.clock * MORE_EXPONENTIALS.get(gpu.name, EXPONENTIALS)
    peak = gpu.flops[DType.BF16]
    if gpu.architecture == "blackwell":  # its kernels quantise the queries too where the cache is in FP8
        peak = m.where(s["cache_bytes"] == 1, gpu.flops[DType.FP8], peak)
    pair = 4 * s["head_dim"] * gpu.sms / (peak * k.tensor) + k.exponential / exponentials
    unit = grid.resident * grid.rows * KEYS * pair + k.step / gpu.clock
    busy = blocks * unit
    return unit * (1 + k.governor * busy / (busy + GOVERNOR))


def _memory(gpu: Gpu, s: Mapping[str, Any], k: Constants, chunk_work: Any) -> tuple[Any, ...]:
    """Seconds for keys and values, those of decodes, queries and outputs, writing new keys, and reading keys again."""
    missed = 1 / (1 + (k.resident * gpu.l2 / s["footprint"]) ** (1 / k.width))
    # What L2 caches deliver goes with the SMs' ports and with the memory behind them: the geometric mean of the two.
    near = (k.l2 * L2_BYTES * gpu.sms * gpu.clock * 2 * gpu.bandwidth) ** -0.5
    byte = missed / (gpu.bandwidth * k.memory) + (1 - missed) * near
    entry = 2 * s["head_dim"] * s["cache_bytes"]
    token = entry * s["kv_heads"] * byte
    queries = s["decodes"] + s["chunk_queries"]
    return ((s["decode_keys"] + s["chunk_keys"]) * token, s["decode_keys"] * token,
            k.activations * 4 * queries * s["heads"] * s["head_dim"] * byte, k.written * 2 * queries * token,
            k.reread * near * KEYS * entry * chunk_work)


def _join(first: Any, second: Any, norm: float) -> Any:
    """Two things that overlap: the larger, and somewhat more where they are alike."""
    return (first**norm + second**norm) ** (1 / norm)
