"""The thread blocks into which three attention kernels cut a batch: rows of a tile, tiles, pieces of a split context.

Written down from the kernels' own host code: FlashAttention-2 (``flash_api.cpp``: set_params_splitkv,
num_splits_heuristic, and heads of a KV head swapped into queries where every sequence has one), FlashAttention-3
(``heuristics.h``, ``tile_size.h``, ``flash_prepare_scheduler.cu``) and TensorRT-LLM's (``fmhaRunner``: as many blocks
along the keys as there are SMs to hold them).  The formulas run on arrays and on floats alike.  `AttentionRates` are
the constants of attention in seconds, on a GPU and for a layer's heads.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from attrs import define, field, frozen

from ksim.foundation.units import DType
from ksim.oracles.efficiency.models import Array
from ksim.specs.hardware import Gpu

__all__ = ["FEW_ROWS", "KEYS", "Counts", "LaunchGrid", "Heads", "chunk_grid", "decode_grid", "even", "flash2", "flash3",
           "length", "only", "tokens", "CONSTANTS", "AttentionConstants", "AttentionRates"]


#: Keys in a block, and rows a tile has at most and at least in FlashAttention-3 (one warpgroup's matrix instruction).
KEYS, ROWS, FEW_ROWS = 128, 128.0, 64.0
#: Rows of a tile of TensorRT-LLM's kernels: heads of a decode, queries of a chunk (two tiles of 128 take turns).
DECODE_ROWS, CHUNK_ROWS = 16.0, 256.0
#: SMs' worth of blocks from which FlashAttention splits nothing, and the efficiency of a split worth taking.
FULL, WORTH = 0.8, 0.85
#: FlashAttention-3 aims at pieces so much larger than an even share, and splits nothing of so few blocks of keys.
SLACK, SHORT = 1.1, 4
#: Into how many pieces FlashAttention splits at most.
MOST_SPLITS = 128
#: Blocks of FlashAttention-2 that fit an SM's shared memory at once (80 KiB each): 164 KiB on GA100, else 100 KiB.
RESIDENT = {"ampere": 2.0}
#: The same of TensorRT-LLM's decode kernel, on 228 KiB.
DECODE_RESIDENT = 2.0


@define(eq=False)
class Counts:
    """The counts of a kernel over its batch, as in `COLUMNS`; numbers, or columns of many kernels."""

    decodes: Any
    decode_keys: Any
    decode_longest: Any
    chunks: Any = 0.0
    chunk_queries: Any = 0.0
    chunk_keys: Any = 0.0
    chunk_pairs: Any = 0.0
    chunk_unmasked_pairs: Any = 0.0
    chunk_most: Any = 0.0
    chunk_longest: Any = 0.0


@define(eq=False)
class Heads:
    """A layer of attention on one GPU, as in `COLUMNS`; columns where kernels are of several layers.

    `group` query heads share a KV head; `features` are those of `FEATURES` that no batch changes.
    """

    gpu: Gpu
    heads: Any
    kv_heads: Any
    head_dim: Any
    cache_bytes: Any
    footprint: Any
    writes: Any
    group: Any
    features: tuple[Any, Any, Any, Any]

    @classmethod
    def of(cls, m: Any, gpu: Gpu, heads: Any, kv_heads: Any, head_dim: Any, cache_bytes: Any, footprint: Any,
           writes: Any) -> "Heads":
        group = heads / kv_heads
        resident = m.minimum(m.maximum(footprint / gpu.l2, 2.0**-5), 2.0**5)
        return cls(gpu, heads, kv_heads, head_dim, cache_bytes, footprint, writes, group=group,
                   features=(m.log2(kv_heads), m.log2(group), m.log2(head_dim / 128), m.log2(resident)))


@define(eq=False)
class LaunchGrid:
    """The thread blocks of one launch.

    `rows` of a tile and the `tokens` of a chunk in them; `piece`, the most blocks
    of keys that one thread block goes over; whether a context is `split` into
    more than one piece; whether it is the kernel for `decodes` alone; tiles of
    decodes and of chunks; `resident` thread blocks at once on an SM; how many
    times partial results are added up (`combines`), and heads reordered (`copies`);
    whether sequences are taken up `in_turn`, decodes before chunks, and not all
    of them for one head after the other.
    """

    rows: Any
    tokens: Any
    piece: Any
    split: Any
    decodes: Any = field(kw_only=True)
    decode_tiles: Any = 0.0
    chunk_tiles: Any = 0.0
    resident: float = 1.0
    combines: Any = 0.0
    copies: Any = 0.0
    in_turn: bool = False


@lru_cache(maxsize=16)
def _splits(slots: int) -> Array:
    """FlashAttention's num_splits_heuristic by thread blocks before splitting (rows) and the most splits there may be:
    the fewest whose last wave is nearly as full as that of the best."""
    blocks, splits = np.arange(1, math.ceil(FULL * slots))[:, None], np.arange(1, MOST_SPLITS + 1)
    waves = blocks * splits / slots
    efficiency = waves / np.ceil(waves)
    table = np.ones((slots + 1, MOST_SPLITS + 1))
    for most in range(1, MOST_SPLITS + 1):
        among = efficiency[:, :most]
        table[1:len(blocks) + 1, most] = (among >= WORTH * among.max(axis=1, keepdims=True)).argmax(axis=1) + 1
    return table


def flash3(h: Heads, s: Counts, blocks: Any, m: Any) -> LaunchGrid:
    """One launch for the ragged batch; the longest chunk decides for all whether contexts are split."""
    gpu, group = h.gpu, h.group
    most = m.maximum(s.chunk_most, 1.0) * group
    few = (most <= FEW_ROWS) & (h.head_dim <= 128)
    rows = m.where(few, FEW_ROWS, ROWS)
    decode_tiles = s.decodes * m.ceil(group / ROWS) * h.kv_heads
    chunk_tiles = s.chunks * m.ceil(tokens(s, m) * group / rows) * h.kv_heads
    longest = m.ceil(m.maximum(s.decode_longest, s.chunk_longest) / KEYS)
    # What the heuristic counts: the tiles of a batch of one, and blocks of keys as if nothing were masked.
    alone = m.minimum(h.kv_heads * m.ceil(most / ROWS), float(gpu.sms))
    keys = m.minimum(s.chunk_unmasked_pairs / m.maximum(s.chunk_queries, 1.0), s.chunk_longest)
    work = decode_tiles * blocks + chunk_tiles * keys / KEYS
    splits = (alone < FULL * gpu.sms) & (longest > SHORT)
    allowed = m.look_up(_splits(gpu.sms), alone, m.minimum(longest, float(MOST_SPLITS)))
    share = m.maximum(m.ceil(SLACK * work / gpu.sms), m.ceil(longest / allowed))
    piece = m.where(splits, m.minimum(share, longest), longest)
    # The kernel that adds up runs whenever there might have been splits.
    return LaunchGrid(rows, rows / group, piece, splits, decode_tiles=decode_tiles, chunk_tiles=chunk_tiles,
                combines=m.where(splits, longest / piece, 0.0), decodes=few, in_turn=True)


def flash2(h: Heads, s: Counts, blocks: Any, m: Any) -> LaunchGrid:
    """One launch; only a batch of decodes alone packs the heads of a KV head, and only then contexts are split."""
    gpu, group = h.gpu, h.group
    packs = (s.chunks == 0) & (group > 1)
    decode_tiles = m.where(packs, h.kv_heads * m.ceil(group / FEW_ROWS), h.heads) * s.decodes
    chunk_tiles = h.heads * s.chunks * m.ceil(tokens(s, m) / FEW_ROWS)
    longest = m.ceil(m.maximum(s.decode_longest, s.chunk_longest) / KEYS)
    # The heuristic takes it that two blocks share an SM.
    slots = 2 * gpu.sms
    allowed = m.look_up(_splits(slots), m.minimum(decode_tiles, float(slots)), m.minimum(longest, float(MOST_SPLITS)))
    splits = m.where(packs, allowed, 1.0)
    reorders = packs & (s.decodes > 1) & (h.kv_heads > 1)
    return LaunchGrid(FEW_ROWS, FEW_ROWS, m.ceil(longest / splits), splits > 1, decode_tiles=decode_tiles,
                chunk_tiles=chunk_tiles, resident=RESIDENT.get(gpu.architecture, 1.0),
                combines=m.where(splits > 1, splits, 0.0), copies=m.where(reorders, 1.0, 0.0), decodes=s.chunks == 0)


def decode_grid(h: Heads, s: Counts, blocks: Any, m: Any) -> LaunchGrid:
    """TensorRT-LLM's launch for decodes; the last block of a context to finish adds up, so no kernel does."""
    tiles = s.decodes * h.kv_heads * m.ceil(h.group / DECODE_ROWS)
    longest = m.ceil(s.decode_longest / KEYS)
    splits = m.maximum(m.minimum(m.floor(h.gpu.sms / m.maximum(tiles, 1.0)), longest), 1.0)
    piece = m.maximum(m.ceil(longest / splits), 1.0)
    return LaunchGrid(DECODE_ROWS, 1.0, piece, splits > 1, decode_tiles=tiles, resident=DECODE_RESIDENT,
                      decodes=tiles >= 0)


def chunk_grid(h: Heads, s: Counts, blocks: Any, m: Any) -> LaunchGrid:
    """TensorRT-LLM's launch for chunks, a tile for each head."""
    tiles = s.chunks * h.heads * m.ceil(tokens(s, m) / CHUNK_ROWS)
    piece = m.maximum(m.ceil(s.chunk_longest / KEYS), 1.0)
    return LaunchGrid(CHUNK_ROWS, CHUNK_ROWS, piece, tiles < 0, chunk_tiles=tiles, decodes=tiles < 0)


def only(s: Counts, kind: str) -> Counts:
    """The counts without chunks, or without decodes."""
    if kind == "decode":
        return Counts(s.decodes, s.decode_keys, s.decode_longest)
    return Counts(0.0, 0.0, 0.0, chunks=s.chunks, chunk_queries=s.chunk_queries, chunk_keys=s.chunk_keys,
                  chunk_pairs=s.chunk_pairs, chunk_unmasked_pairs=s.chunk_unmasked_pairs, chunk_most=s.chunk_most,
                  chunk_longest=s.chunk_longest)


def tokens(s: Counts, m: Any) -> Any:
    """New tokens of a chunk, on average."""
    return s.chunk_queries / m.maximum(s.chunks, 1.0)


def even(s: Counts) -> Any:
    """Whether the contexts of all decodes end within a block of keys of each other."""
    return s.decode_longest * s.decodes <= s.decode_keys + KEYS * s.decodes


def length(s: Counts, alike: Any, m: Any) -> Any:
    """Blocks of keys of a decode, on average: half of the last one is empty where lengths are not *alike*."""
    mean = s.decode_keys / m.maximum(s.decodes, 1.0) / KEYS
    return m.where(alike, m.ceil(mean), mean + 0.5)


#: Exponentials per clock and SM (CUDA programming guide, arithmetic instructions); Blackwell Ultra has twice as many.
EXPONENTIALS, MORE_EXPONENTIALS = 16.0, {"B300": 32.0, "GB300": 32.0}
#: Bytes per clock and SM from the L2 cache (NVIDIA, A100 white paper).
L2_BYTES = 64.0


@frozen
class AttentionConstants:
    """The constants of attention kernels that no data sheet states; latencies are in clock cycles.

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
CONSTANTS = AttentionConstants()


@define(eq=False)
class AttentionRates:
    """Seconds of what `AttentionConstants` has in clock cycles, and the numbers that it has without a unit.

    `start` has the kernel that writes the cache in it, where that is timed along.  A tile takes `pair` for each of its
    rows on a block of keys.  `token` is for a key and its value, `activations` for queries and outputs of a token,
    `written` for writing its key and value where that is timed along, `again` for a block of keys that a tile reads.
    """

    start: Any
    combine: float
    combine_split: float
    copy: float
    block: float
    chunk_block: float
    step: float
    pair: Any
    token: Any
    activations: Any
    written: Any
    again: Any
    governor: float
    partial: float
    tail: float
    hidden: float
    norm: float
    root: float

    @classmethod
    def of(cls, k: AttentionConstants, heads: Heads, m: Any) -> "AttentionRates":
        gpu = heads.gpu
        byte, near = _bytes(k, heads)
        entry = 2 * heads.head_dim * heads.cache_bytes
        token = entry * heads.kv_heads * byte
        clocks = {name: getattr(k, name) / gpu.clock
                  for name in ("combine", "combine_split", "copy", "block", "chunk_block", "step")}
        return cls(
            start=(k.start + heads.writes * k.write) / gpu.clock, **clocks, pair=KEYS * _pair(k, heads, m), token=token,
            activations=k.activations * 4 * heads.heads * heads.head_dim * byte,
            written=heads.writes * k.written * 2 * token, again=k.reread * near * KEYS * entry,
            governor=k.governor, partial=k.partial, tail=k.tail, hidden=k.hidden, norm=k.norm, root=1 / k.norm)


def _pair(k: AttentionConstants, heads: Heads, m: Any) -> Any:
    """Seconds of a tile's row on a key: products and exponentials."""
    gpu = heads.gpu
    exponentials = gpu.clock * MORE_EXPONENTIALS.get(gpu.name, EXPONENTIALS)
    peak = gpu.flops[DType.BF16]
    if gpu.architecture == "blackwell":  # its kernels quantise the queries too where the cache is in FP8
        peak = m.where(heads.cache_bytes == 1, gpu.flops[DType.FP8], peak)
    return 4 * heads.head_dim * gpu.sms / (peak * k.tensor) + k.exponential / exponentials


def _bytes(k: AttentionConstants, heads: Heads) -> tuple[Any, float]:
    """Seconds of a byte, from memory or the L2 cache, wherever it is, and from the L2 cache."""
    gpu = heads.gpu
    missed = 1 / (1 + (k.resident * gpu.l2 / heads.footprint) ** (1 / k.width))
    # What L2 caches deliver goes with the SMs' ports and with the memory behind them: the geometric mean of the two.
    near = (k.l2 * L2_BYTES * gpu.sms * gpu.clock * 2 * gpu.bandwidth) ** -0.5
    return missed / (gpu.bandwidth * k.memory) + (1 - missed) * near, near
