"""Paged attention from the data sheet: tiles, splits and waves of the kernels that engines choose.

Which kernel runs is known from the GPU's architecture (vLLM's default backends):

* Hopper: FlashAttention-3, one launch for the whole ragged batch, sequence after sequence.  Query heads of a KV head
  share the rows of a tile; contexts are split into pieces, which one long chunk in the batch turns off for all.
* Data-centre Blackwell: FlashInfer's TensorRT-LLM kernels, one launch for decodes and one for chunks.
* Elsewhere: FlashAttention-2.  A batch of decodes packs heads and splits contexts; with a chunk in it it does neither.

A thread block takes a tile of query rows over blocks of 128 keys.  Time is a start-up, and the larger (in a p-norm) of
what the SMs need -- work in waves, and what sticks out at the end -- and of the stream of keys and values.  That comes
from device memory or, as far as what is touched between two uses of the cache (`footprint`) fits there, from the L2
cache.  What no data sheet states is in `AttentionConstants`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define

from ksim.oracles.compiled.arithmetic import Arrays, Floats
from ksim.oracles.efficiency.attention_grids import (
    CONSTANTS,
    FEW_ROWS,
    KEYS,
    AttentionConstants,
    AttentionRates,
    Counts,
    Heads,
    LaunchGrid,
    chunk_grid,
    decode_grid,
    even,
    flash2,
    flash3,
    length,
    only,
    tokens,
)
from ksim.oracles.efficiency.families import Family, Shapes, attributes
from ksim.oracles.efficiency.models import Array, Physics
from ksim.specs.hardware import Gpu

__all__ = ["COLUMNS", "FAMILY", "FEATURES", "LAUNCHES", "cut", "features", "physics", "timed"]

#: What a shape says.  Of the sequences with one new token (`decode`): how many, the keys they read in all (their own
#: included) and the most of one.  Of the others (`chunk`): how many, their new tokens, their keys, their causal (query,
#: key) pairs, new tokens times keys summed, the most new tokens of one and the most keys that one query sees.
#: `cache_bytes` is the size of an element of the cache; `footprint` the bytes touched before the cache is read again,
#: infinite in serving; `writes` is 1 where the kernel that writes new keys and values is timed along, else 0.
COLUMNS: tuple[str, ...] = (
    "decodes", "decode_keys", "decode_longest",
    "chunks", "chunk_queries", "chunk_keys", "chunk_pairs", "chunk_unmasked_pairs", "chunk_most", "chunk_longest",
    "heads", "kv_heads", "head_dim", "cache_bytes", "footprint", "writes",
)
#: Logarithms are to base 2; `log_keys` in blocks of 128, `log_head_dim` in 128.
FEATURES: tuple[str, ...] = (
    "log_sequences", "log_queries", "log_keys", "log_kv_heads", "log_group", "log_head_dim",
    "log_waves", "log_bound", "log_start", "log_resident", "chunk_share",
)
LAUNCHES: tuple[str, ...] = ("whole", "split")

#: How many of them are counts of a batch; the rest are a layer's.
COUNTED = 10
#: Shapes priced one after the other, as floats; more go through arrays, which cost as much as about twelve.
FEW = 10
#: What sticks out of a random order of unequal pieces, in units of the longest less half the mean, as SMs and as memory
#: feel it, and the pieces that rounding up adds to a context of random length.  Simulated: pieces of random contexts,
#: first come first served on 132 SMs that share a memory; nothing measured went into them.
RAGGED_TAIL, RAGGED_STREAM, RAGGED_PIECE = 0.8, 0.3, 0.5
#: Seconds after which a power limit is felt.
GOVERNOR = 2e-3


@define(eq=False)
class Pieces:
    """One launch cut into `pieces`, of which `slots` run at once: how many blocks of keys they take.

    The mean, the longest and the shortest are given for all pieces, for those of decodes and for those of chunks;
    `chunk_work` is the sum over the chunks.  `unequal` is 1 where the contexts of decodes differ.
    """

    counts: Counts
    grid: LaunchGrid
    pieces: Any
    mean: Any
    decodes: Any
    decode_mean: Any
    decode_longest: Any
    chunk_work: Any
    chunk_mean: Any
    chunk_longest: Any
    longest: Any
    shortest: Any
    unequal: Any
    slots: float


@define(eq=False)
class Time:
    """The seconds of one launch: all of them, those of the SMs, of memory, and the `fixed` ones of any shape."""

    seconds: Any
    compute: Any
    memory: Any
    fixed: Any
    waves: Any
    split: Any
    chunk_share: Any


def physics(gpu: Gpu, shapes: Mapping[str, Any], constants: AttentionConstants = CONSTANTS) -> Physics:
    """The reference time of attention over the batches that *shapes* describes by `COLUMNS`.

    What all have alike may be a number.
    """
    known = [shape if isinstance(shape := shapes[name], float) else np.asarray(shape, dtype=np.float64)
             for name in COLUMNS]
    rows = max(shape.size for shape in known if not isinstance(shape, float))
    if rows <= FEW:
        table = np.array(_one_by_one(gpu, known, rows, constants)).reshape(rows, 5 + len(FEATURES)).T
    else:
        table, bound = np.empty((5 + len(FEATURES), rows)), _bound(gpu, known[COUNTED:], constants, Arrays)
        for column, values in zip(table, _results(Counts(*known[:COUNTED]), *bound, Arrays), strict=True):
            column[:] = values
    seconds, compute, memory, waves, split = table[:5]
    idle: Array = 1 - waves / np.maximum(np.ceil(waves), 1.0)
    return Physics(seconds, compute, memory, waves, idle, split.astype(np.intp),
                   np.ascontiguousarray(table[5:].T))


def _one_by_one(gpu: Gpu, columns: Sequence[Any], rows: int, constants: AttentionConstants) -> list[tuple[Any, ...]]:
    lists = [[column] * rows if isinstance(column, float) else column.tolist() for column in columns]
    layers = list(zip(*lists[COUNTED:], strict=True))
    known = {layer: _bound(gpu, layer, constants, Floats) for layer in dict.fromkeys(layers)}
    return [_results(Counts(*counts), *known[layer], Floats)
            for counts, layer in zip(zip(*lists[:COUNTED], strict=True), layers, strict=True)]


def _bound(gpu: Gpu, layer: Sequence[Any], constants: AttentionConstants, m: Any) -> tuple[Heads, AttentionRates]:
    return (heads := Heads.of(m, gpu, *layer)), AttentionRates.of(constants, heads, m)


def _results(s: Counts, heads: Heads, rates: AttentionRates, m: Any) -> tuple[Any, ...]:
    """Five columns of the result, then the features."""
    time = timed(cut(s, heads, m), s, rates, m)
    return (time.seconds, time.compute, time.memory, time.waves, m.where(time.split, 1.0, 0.0),
            *features(s, heads, time, m))


def features(s: Counts, heads: Heads, time: Time, m: Any) -> tuple[Any, ...]:
    """`FEATURES` of a batch that takes so much *time*."""
    sequences, keys = s.decodes + s.chunks, s.decode_keys + s.chunk_keys
    kv_heads, group, head_dim, resident = heads.features
    return (m.log2(sequences), m.log2((s.decodes + s.chunk_queries) / sequences), m.log2(keys / (KEYS * sequences)),
            kv_heads, group, head_dim, m.log2(time.waves), m.log2(time.compute / time.memory),
            m.log2(time.fixed / time.seconds), resident, time.chunk_share)


def cut(s: Counts, heads: Heads, m: Any) -> list[Pieces]:
    """The launches that compute a batch, of decodes before those of chunks."""
    architecture = heads.gpu.architecture
    if architecture == "hopper":
        return [_pieces(s, heads, flash3, m)]
    if architecture == "blackwell":
        return [_pieces(only(s, "decode"), heads, decode_grid, m), _pieces(only(s, "chunk"), heads, chunk_grid, m)]
    return [_pieces(s, heads, flash2, m)]


def timed(launches: Sequence[Pieces], s: Counts, rates: AttentionRates, m: Any) -> Time:
    """The time of *launches* one after the other, of which either may have nothing to do."""
    if len(launches) == 1:
        return _launch(launches[0], rates, m)
    decodes, chunks = (_launch(pieces, rates, m) for pieces in launches)
    first, second = m.where(s.decodes > 0, 1.0, 0.0), m.where(s.chunks > 0, 1.0, 0.0)
    compute = decodes.compute * first + chunks.compute * second
    return Time(
        decodes.seconds * first + chunks.seconds * second, compute, decodes.memory * first + chunks.memory * second,
        decodes.fixed * first + chunks.fixed * second, decodes.waves * first + chunks.waves * second,
        decodes.split & (s.decodes > 0), chunks.compute * second / compute)


def _pieces(s: Counts, heads: Heads, launch: Any, m: Any) -> Pieces:
    """Cut a batch as *launch* does.

    The tiles of a chunk run from the longest to the shortest, which is then all that a partial wave waits for.
    """
    alike = even(s)
    blocks = length(s, alike, m)
    grid: LaunchGrid = launch(heads, s, blocks, m)
    piece = grid.piece
    splits = m.maximum(m.where(alike, m.ceil(blocks / piece), (blocks - 0.5) / piece + RAGGED_PIECE), 1.0)
    decodes, decode_mean = grid.decode_tiles * splits, blocks / splits
    chunks, work = _chunk_pieces(s, grid, m)
    pieces = m.maximum(decodes + chunks, 1.0)
    mean = (grid.decode_tiles * blocks + work) / pieces
    decode_longest = m.where(alike, decode_mean, m.minimum(piece, m.ceil(s.decode_longest / KEYS)))
    chunk_longest = m.where(s.chunks > 0, m.minimum(piece, m.ceil(s.chunk_longest / KEYS)) + 0.5, 0.0)
    longest = m.maximum(m.maximum(decode_longest, chunk_longest), 0.5)
    shortest = m.where(s.chunks > 0, (s.chunk_longest - s.chunk_most) / KEYS + 1, mean)
    shortest = m.where(s.chunk_longest < s.chunk_most, longest, shortest)  # a window makes all tiles alike
    return Pieces(s, grid, pieces, mean, decodes, decode_mean, decode_longest, chunk_work=work,
                  chunk_mean=work / m.maximum(chunks, 1.0), chunk_longest=chunk_longest, longest=longest,
                  shortest=shortest, unequal=m.where(alike, 0.0, 1.0), slots=heads.gpu.sms * grid.resident)


def _chunk_pieces(s: Counts, grid: LaunchGrid, m: Any) -> tuple[Any, Any]:
    """Pieces of the chunks, and their work in blocks of keys."""
    # A query sees `seen` keys on average, and a tile those of its last query, whole blocks of them.
    seen = s.chunk_pairs / m.maximum(s.chunk_queries, 1.0)
    blocks = m.maximum((seen + m.minimum(grid.tokens, m.maximum(tokens(s, m), 1.0)) / 2) / KEYS + 0.5, 1.0)
    context = m.minimum(s.chunk_keys / m.maximum(s.chunks, 1.0), s.chunk_longest) / KEYS
    return grid.chunk_tiles * m.maximum(m.ceil(context / grid.piece), 1.0), grid.chunk_tiles * blocks


def _launch(p: Pieces, rates: AttentionRates, m: Any) -> Time:
    """The time of one launch."""
    s, grid, mean = p.counts, p.grid, p.mean
    waves = p.pieces / p.slots
    unit, queries = _unit(rates, grid, mean * p.pieces / p.slots), s.decodes + s.chunk_queries
    block = m.where(grid.decodes, rates.block, rates.chunk_block)
    piece = mean * unit + block
    partial = rates.partial * (m.ceil(waves) - waves) * m.minimum(1.0, p.shortest / p.longest)
    sticks_out = m.where(waves > 1, 1.0, 0.0)
    compute = (m.where(waves < 1, 1.0, waves + partial) * piece
               + sticks_out * rates.tail * m.maximum(p.chunk_longest - p.chunk_mean, 0.0) * unit)
    memory = (s.decode_keys + s.chunk_keys) * rates.token + rates.again * p.chunk_work + rates.hidden * block
    decodes = _join(*_decodes(p, unit, block, sticks_out, rates), rates)
    loop = m.maximum(_join(compute, memory, rates), m.where(s.decodes > 0, decodes, 0.0))
    if grid.in_turn:
        loop = m.where((s.decodes > 0) & (s.chunks > 0), _in_turn(p, unit, block, rates, m), loop)
    loop = m.maximum(loop, p.longest * unit + block)
    combining = m.where(grid.combines > 0, rates.combine + rates.combine_split * grid.combines, 0.0)
    fixed = rates.start + combining + rates.copy * grid.copies + queries * rates.written
    return Time(fixed + loop + queries * rates.activations, compute, memory, fixed, waves, grid.split,
                p.chunk_work / m.maximum(mean * p.pieces, 1.0))


def _decodes(p: Pieces, unit: Any, block: Any, sticks_out: Any, rates: AttentionRates) -> tuple[Any, Any]:
    """Seconds of the SMs and of memory until the last decode is done; where contexts differ, one *sticks_out*."""
    decode = p.decode_mean * unit + block
    tail = sticks_out * p.unequal * RAGGED_TAIL * (p.decode_longest * unit + block - decode / 2)
    return (p.decodes / p.slots * decode + tail,
            p.counts.decode_keys * rates.token + rates.hidden * block + RAGGED_STREAM * tail)


def _in_turn(p: Pieces, unit: Any, block: Any, rates: AttentionRates, m: Any) -> Any:
    """Seconds of a launch that takes up all pieces of its decodes before the first of its chunks.

    Decodes keep memory busy and chunks the SMs, so neither hides in the time of the other: their seconds add up.  With
    many pieces in flight, each of the two takes as long as the slower of memory and SMs, and no longer.  Half of a
    chunk's piece sticks out at the end; the longest cannot begin before the last decode has.
    """
    s, chunk = p.counts, p.chunk_mean * unit + block
    busy, waves = p.decodes / p.slots, (p.pieces - p.decodes) / p.slots
    # Of pieces that leave SMs over, memory holds up only the SMs that they have.
    stream = m.minimum(busy, 1.0) * s.decode_keys * rates.token
    # The kernel for decodes alone, whose tiles have fewer rows, is no slower.
    alone = busy * (p.decode_mean * (FEW_ROWS * rates.pair + rates.step) + rates.block)
    decodes = m.maximum(busy * (p.decode_mean * unit + block), _join(alone, stream, rates))
    chunks = m.maximum(waves * chunk,
                       m.minimum(waves, 1.0) * (s.chunk_keys * rates.token + rates.again * p.chunk_work))
    begin = m.where(busy > 1, decodes * (1 - 0.5 / m.maximum(busy, 1.0)), 0.0)
    loop = m.maximum(decodes + chunks + m.where(busy + waves > 1, 0.5 * chunk, 0.0),
                     begin + p.chunk_longest * unit + block)
    return m.maximum(loop, m.maximum(*_decodes(p, unit, block, m.where(busy > 1, 1.0, 0.0), rates)))


def _unit(rates: AttentionRates, grid: LaunchGrid, blocks: Any) -> Any:
    """Seconds of a tile on a block of keys where an SM works on so many *blocks*: products, exponentials, latency."""
    unit = grid.resident * grid.rows * rates.pair + rates.step
    busy = blocks * unit
    return unit * (1 + rates.governor * busy / (busy + GOVERNOR))


def _join(first: Any, second: Any, rates: AttentionRates) -> Any:
    """Two things that overlap: the larger, and somewhat more where they are alike."""
    return (first**rates.norm + second**rates.norm) ** rates.root


#: The columns that are a kernel's own attributes.
_OWN = tuple(name for name in COLUMNS if name not in ("cache_bytes", "footprint", "writes"))


def _columns(kernels: Sequence[Any], gpu: Gpu) -> Shapes:
    return {
        **attributes(kernels, _OWN),
        "cache_bytes": np.array([kernel.cache.bytes for kernel in kernels]),
        "footprint": np.full(len(kernels), np.inf),  # a step reads the caches of all layers before one again
        "writes": np.zeros(len(kernels)),
    }


def _sweep(kernel: Any, gpu: Gpu) -> Shapes:
    """Columns of the counts; what all kernels share stays a number."""
    counts = {name: np.asarray(getattr(kernel, name), dtype=np.float64) for name in COLUMNS[:COUNTED]}
    alone = not counts["chunks"].any()
    same: Any = {"heads": float(kernel.heads), "kv_heads": float(kernel.kv_heads), "head_dim": float(kernel.head_dim),
                 "cache_bytes": float(kernel.cache.bytes), "footprint": np.inf, "writes": 0.0}
    return {**{name: 0.0 if alone and name.startswith("chunk") else column for name, column in counts.items()}, **same}


FAMILY = Family(
    lambda gpu, shapes, constants: physics(gpu, shapes, AttentionConstants(**constants)), FEATURES, LAUNCHES, _columns,
    lambda kernel: tuple(dict.fromkeys((f"attention/{kernel.cache.label}", "attention/bf16"))), sweep=_sweep,
    inputs=COLUMNS)
