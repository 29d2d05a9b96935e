"""What attention's constants come to, in seconds, on a GPU with a layer's heads, whatever the batch."""

from typing import Any

from attrs import define, frozen

from ksim.foundation.units import DType
from ksim.oracles.efficiency.attention_grids import KEYS, Heads

__all__ = ["CONSTANTS", "Constants", "Rates"]

#: Exponentials per clock and SM (CUDA programming guide, arithmetic instructions); Blackwell Ultra has twice as many.
EXPONENTIALS, MORE_EXPONENTIALS = 16.0, {"B300": 32.0, "GB300": 32.0}
#: Bytes per clock and SM from the L2 cache (NVIDIA, A100 white paper).
L2_BYTES = 64.0


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


@define(eq=False)
class Rates:
    """Seconds of what `Constants` has in clock cycles, and the numbers that it has without a unit.

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
    def of(cls, k: Constants, heads: Heads, m: Any) -> "Rates":
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


def _pair(k: Constants, heads: Heads, m: Any) -> Any:
    """Seconds of a tile's row on a key: products and exponentials."""
    gpu = heads.gpu
    exponentials = gpu.clock * MORE_EXPONENTIALS.get(gpu.name, EXPONENTIALS)
    peak = gpu.flops[DType.BF16]
    if gpu.architecture == "blackwell":  # its kernels quantise the queries too where the cache is in FP8
        peak = m.where(heads.cache_bytes == 1, gpu.flops[DType.FP8], peak)
    return 4 * heads.head_dim * gpu.sms / (peak * k.tensor) + k.exponential / exponentials


def _bytes(k: Constants, heads: Heads) -> tuple[Any, float]:
    """Seconds of a byte, from memory or the L2 cache, wherever it is, and from the L2 cache."""
    gpu = heads.gpu
    missed = 1 / (1 + (k.resident * gpu.l2 / heads.footprint) ** (1 / k.width))
    # What L2 caches deliver goes with the SMs' ports and with the memory behind them: the geometric mean of the two.
    near = (k.l2 * L2_BYTES * gpu.sms * gpu.clock * 2 * gpu.bandwidth) ** -0.5
    return missed / (gpu.bandwidth * k.memory) + (1 - missed) * near, near
