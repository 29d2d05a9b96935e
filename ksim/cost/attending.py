"""Layers of attention, made ready to say what they ask of the clock: batch by batch, or for many at once."""

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
from attrs import define, frozen

from ksim.compute.kernels import Work
from ksim.compute.kernels.attention import COUNTS, AttentionLayer
from ksim.cost.energy import Actions, busy_seconds, joules
from ksim.cost.spans import Pricer
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.flow.load import Load
from ksim.oracles import CompiledAttention, check_seconds, peak
from ksim.oracles.compiled.arithmetic import Arrays, Floats
from ksim.oracles.compiled.formulas import StagedFormula, batch_kinds
from ksim.oracles.compiled.intervals import Interval
from ksim.specs.hardware import Gpu

__all__ = ["Attending"]

#: Seconds, joules, clocked, core, busy and clocked joules, as in `Load`.
Asked = tuple[float, float, float, float, float, float]
#: What is said of a kernel besides its counts: seconds, whether what it computes binds it, and whether it was measured.
PRICED: Mapping[str, Interval] = {"seconds": (-inf, inf), "computes": (False, True), "within": (False, True)}


@frozen
class _Amounts:
    """The work of a layer's kernels, as so much of each thing that they count: FLOP of a pair; padded ones of a
    decode's key, of a chunk's pair, and of a chunk for each key of the longest; bytes of a query, read and written, and
    of a key."""

    pair: float
    padded_key: float
    padded_pair: float
    padded_chunk: float
    query: float
    written: float
    key: float

    @classmethod
    def of(cls, layer: AttentionLayer) -> "_Amounts":
        def work(**counts: int) -> Work:
            return layer.kernel([counts.get(name, 0) for name in COUNTS]).work

        pair, key, query = work(chunk_pairs=1), work(chunk_keys=1), work(chunk_queries=1)
        return cls(pair.flops, work(decode_keys=1).padded, pair.padded, work(chunks=1, chunk_longest=1).padded,
                   query.bytes, query.writes, key.bytes)


@frozen
class _Costs:
    """Joules of a FLOP, of a byte in the SMs' caches and in memory, of a byte written, and of a busy second."""

    flop: float
    l2: float
    byte: float
    written: float
    busy: float

    @classmethod
    def of(cls, layer: AttentionLayer, pricer: Pricer) -> "_Costs":
        dtype, power = layer.kernel([0] * len(COUNTS)).work.dtype, pricer.gpu.power
        byte = joules(Actions(hbm=1.0, l2=1.0), power)
        return cls(joules(Actions(1.0, dtype), power).core, byte.core, byte.rest,
                   joules(Actions(written=1.0), power).rest, joules(Actions(busy=1.0), power).busy)


@frozen(eq=False)
class _Ask:
    """From `COUNTS`, seconds, and whether these are bound by what is computed and lie within what was measured, to
    what the clock is asked."""

    gpu: Gpu
    flop_seconds: float
    byte_seconds: float
    cool: float
    each: _Amounts
    cost: _Costs

    @classmethod
    def of(cls, layer: AttentionLayer, pricer: Pricer) -> "_Ask":
        gpu, kernel = pricer.gpu, layer.kernel([0] * len(COUNTS))
        return cls(gpu, 1 / peak(gpu, kernel.work.dtype), 1 / gpu.bandwidth, pricer.cool(layer.family),
                   _Amounts.of(layer), _Costs.of(layer, pricer))

    def __call__(self, m: Any, *numbers: Any) -> tuple[Any, ...]:
        decodes, decode_keys, _, chunks, chunk_queries, chunk_keys, chunk_pairs, _, _, longest = numbers[:len(COUNTS)]
        seconds, computes, within = numbers[len(COUNTS):]
        each, cost = self.each, self.cost
        flops, queries = each.pair * (decode_keys + chunk_pairs), decodes + chunk_queries
        moved = each.query * queries + each.key * (decode_keys + chunk_keys)
        padded = each.padded_key * decode_keys + each.padded_pair * chunk_pairs + each.padded_chunk * chunks * longest
        seconds = m.maximum(m.maximum(seconds, flops * self.flop_seconds), moved * self.byte_seconds)
        seconds = m.where(computes & within, seconds * self.cool, seconds)
        core = cost.flop * m.maximum(flops, padded) + cost.l2 * moved
        busy = cost.busy * busy_seconds(seconds, self.gpu, m.maximum)
        spent = core + busy + cost.byte * moved + cost.written * each.written * queries
        return seconds, spent, m.where(computes, seconds, 0.0), core, busy, m.where(computes, busy, 0.0)


@define(eq=False)
class Attending:
    """A layer of attention that runs so often in a step; what it asks is worked out of floats and of arrays."""

    layer: AttentionLayer
    repeat: int
    compiled: CompiledAttention
    oracle: Any
    floats: StagedFormula
    arrays: StagedFormula

    @classmethod
    def of(cls, layer: AttentionLayer, repeat: int, compiled: CompiledAttention, pricer: Pricer) -> "Attending":
        ask = _Ask.of(layer, pricer)
        floats, arrays = (StagedFormula(ask, namespace, PRICED) for namespace in (Floats, Arrays))
        return cls(layer, repeat, compiled, pricer.oracle, floats, arrays)

    def asked(self, batch: Batch) -> Asked:
        """What one of them asks over *batch*; raises ConfigError where the oracle says no positive, finite number."""
        counts = self.layer.counts(batch)
        asked: Asked = self.floats[counts[0] > 0, counts[3] > 0](*counts, *self.compiled.price(counts))
        if not 0.0 < asked[0] < inf:
            check_seconds(self.oracle, self.layer.over(batch), asked[0])
        return asked

    def columns(self, batches: Batches) -> Load:
        """What those over each of *batches* ask, as columns."""
        sweep = self.layer.sweep(batches)
        counts = [np.asarray(getattr(sweep.kernel, name), dtype=np.float64) for name in COUNTS]
        asked = Load(*self.arrays[batch_kinds(counts)](*counts, *self.compiled.columns(counts)))
        for row in np.flatnonzero(~((asked.seconds > 0) & (asked.seconds < inf)))[:1].tolist():
            check_seconds(self.oracle, sweep[row], float(asked.seconds[row]))
        return asked
