"""Layers of attention, made ready to say what they ask of the clock: batch by batch, or for many at once."""

from math import inf

import numpy as np
from attrs import define, frozen

from ksim.compute.kernels import Work
from ksim.compute.kernels.attention import COUNTS, AttentionLayer
from ksim.cost.answers import Singly
from ksim.cost.energy import Actions, busy_seconds, joules
from ksim.cost.oracles import Estimate, bounds, check, peak
from ksim.cost.spans import Pricer
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.flow.load import Load

__all__ = ["Attending"]

#: Seconds, joules, clocked, core, busy and clocked joules, as in `Load`.
Asked = tuple[float, float, float, float, float, float]


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


@define(eq=False)
class Attending:
    """A layer of attention that runs so often in a step."""

    layer: AttentionLayer
    repeat: int
    singly: Singly
    pricer: Pricer
    cool: float
    flop_seconds: float
    byte_seconds: float
    amounts: _Amounts
    costs: _Costs

    @classmethod
    def of(cls, layer: AttentionLayer, repeat: int, singly: Singly, pricer: Pricer) -> "Attending":
        gpu, kernel = pricer.gpu, layer.kernel([0] * len(COUNTS))
        return cls(layer, repeat, singly, pricer, pricer.cool(kernel), 1 / peak(gpu, kernel.work.dtype),
                   1 / gpu.bandwidth, _Amounts.of(layer), _Costs.of(layer, pricer))

    def asked(self, batch: Batch) -> Asked:
        """What one of them asks over *batch*; raises ConfigError where the oracle says no positive, finite number."""
        counts, each, cost = self.layer.counts(batch), self.amounts, self.costs
        decodes, decode_keys, _, chunks, chunk_queries, chunk_keys, chunk_pairs, _, _, longest = counts
        flops, queries = each.pair * (decode_keys + chunk_pairs), decodes + chunk_queries
        moved = each.query * queries + each.key * (decode_keys + chunk_keys)
        padded = each.padded_key * decode_keys + each.padded_pair * chunk_pairs + each.padded_chunk * chunks * longest
        seconds, computes, within = self.singly.price(counts)
        seconds = max(seconds, flops * self.flop_seconds, moved * self.byte_seconds)
        if not 0.0 < seconds < inf:
            check(self.pricer.oracle, self.layer.over(batch), Estimate(seconds, ""))
        if computes and within:
            seconds *= self.cool
        core = cost.flop * max(flops, padded) + cost.l2 * moved
        busy = cost.busy * busy_seconds(seconds, self.pricer.gpu)
        spent = core + busy + cost.byte * moved + cost.written * each.written * queries
        return (seconds, spent, seconds, core, busy, busy) if computes else (seconds, spent, 0.0, core, busy, 0.0)

    def columns(self, batches: Batches) -> Load:
        """What those over each of *batches* ask, as columns."""
        kernel, pricer = self.layer.columns(batches), self.pricer
        seconds, computes, within = self.singly.columns(kernel)
        seconds = np.maximum(seconds, np.maximum(*bounds(kernel, pricer.gpu)))
        for row in np.flatnonzero(~((seconds > 0) & (seconds < inf)))[:1].tolist():
            check(pricer.oracle, kernel.at(row), Estimate(float(seconds[row]), ""))
        return pricer.load(kernel, seconds, computes, within)
