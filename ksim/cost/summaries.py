"""Summaries of steps: the few costs that a step's duration depends on, without the costs of its kernels.

A layer of attention is compiled for the oracle and the GPU, as a formula of floats or of columns.  Launches for LoRA
adapters are summed up by the tokens of each adapter.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from attrs import astuple, define, field, frozen

from ksim.compute.graph import Op, is_of_adapters
from ksim.compute.kernels import Work
from ksim.compute.kernels.attention import COUNTS, AttentionLayer
from ksim.cost.energy import Actions, busy_seconds, joules
from ksim.cost.plans import Plans
from ksim.cost.pricer import BatchLaunch, Plan, Pricer
from ksim.flow.batch import Batch, Batches
from ksim.flow.costs import Costs, StepSummary
from ksim.oracles import CompiledAttention, check_seconds, compile_attention, peak
from ksim.oracles.compiled.arithmetic import Arrays, Floats, Interval, StagedFormula, batch_kinds
from ksim.specs.hardware import Gpu
from ksim.specs.host import Inputs

if TYPE_CHECKING:
    from ksim.compute.kernels.mla import LatentLayer
    from ksim.compute.latent import PerToken

__all__ = ["AdapterSummary", "AttentionSummary", "Summaries", "TokensSummary"]


#: Numbers of tokens by adapter whose costs are kept.
MOST = 4096
_NAMES = ("seconds", "joules", "compute_bound", "sm_action_joules", "sm_active_joules", "compute_bound_joules")


@define(eq=False)
class AdapterSummary:
    """Prices all of a plan's `launches` for adapters, once for each set of tokens by adapter."""

    launches: Sequence[BatchLaunch]
    pricer: Pricer
    _known: dict[Any, tuple[float, ...]] = field(factory=dict, init=False)

    repeat: ClassVar[int] = 1

    def of_batch(self, batch: Batch) -> tuple[float, ...]:
        """The numbers of a step, as `AttentionSummary` has them."""
        if (key := batch.adapters) not in self._known:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = self._priced(batch)
        return self._known[key]

    def of_batches(self, batches: Batches) -> tuple[Any, ...]:
        """The numbers of many steps, as columns."""
        return tuple(np.array([self.of_batch(batch) for batch in batches.batches]).T)

    def _priced(self, batch: Batch) -> tuple[float, ...]:
        asked: list[Any] = [(launch.label, launch.layer.over(batch)) for launch in self.launches]
        costs = self.pricer.kernels(asked)
        return _numbers(sum((launch.repeat * cost.costs for launch, cost in zip(self.launches, costs, strict=True)),
                            Costs.of()))


def _numbers(costs: Costs) -> "Numbers":
    return tuple(float(getattr(costs, name)) for name in _NAMES)  # type: ignore[return-value]


#: Seconds, joules, and compute-bound seconds; SM action, SM active and compute-bound joules, as in `StepSummary`.
Numbers = tuple[float, float, float, float, float, float]
#: The answers of an oracle about a kernel: seconds, whether compute limits it, and whether its like was measured.
PRICED: Mapping[str, Interval] = {"seconds": (-inf, inf), "computes": (False, True), "measured": (False, True)}


@frozen(kw_only=True)
class _Work:
    """The work of a layer's kernels for one of each of their counts.

    `pair` is the FLOP of a pair.  Padded FLOP are those of a decode's key, of a chunk's pair, and of a chunk for each
    key of the longest.  `query` is the bytes of a query that are read and `written`, `key` those of a key.
    """

    pair: float
    padded_key: float
    padded_pair: float
    padded_chunk: float
    query: float
    written: float
    key: float

    @classmethod
    def of(cls, layer: "AttentionLayer | LatentLayer") -> "_Work":
        def work(**counts: int) -> Work:
            return layer.kernel([counts.get(name, 0) for name in COUNTS]).work

        pair, key, query = work(chunk_pairs=1), work(chunk_keys=1), work(chunk_queries=1)
        return cls(pair=pair.flops, padded_key=work(decode_keys=1).padded, padded_pair=pair.padded,
                   padded_chunk=work(chunks=1, chunk_longest=1).padded, query=query.bytes, written=query.writes,
                   key=key.bytes)


@frozen
class _Energy:
    """Joules of a FLOP, of a byte in the SMs' caches and in memory, of a byte written, and of a busy second."""

    flop: float
    l2: float
    byte: float
    written: float
    busy: float

    @classmethod
    def of(cls, layer: "AttentionLayer | LatentLayer", pricer: Pricer) -> "_Energy":
        dtype, power = layer.kernel([0] * len(COUNTS)).work.dtype, pricer.gpu.power
        byte = joules(Actions(hbm=1.0, l2=1.0), power)
        return cls(joules(Actions(1.0, dtype), power).core, byte.core, byte.rest,
                   joules(Actions(written=1.0), power).rest, joules(Actions(busy=1.0), power).busy)


@frozen(eq=False)
class _Formula:
    """The formula from `COUNTS` and the answers of an oracle (`PRICED`) to `Numbers`."""

    gpu: Gpu
    flop_seconds: float
    byte_seconds: float
    cool: float
    work: _Work
    energy: _Energy

    @classmethod
    def of(cls, layer: "AttentionLayer | LatentLayer", pricer: Pricer) -> "_Formula":
        gpu, kernel = pricer.gpu, layer.kernel([0] * len(COUNTS))
        return cls(gpu, 1 / peak(gpu, kernel.work.dtype), 1 / gpu.bandwidth, pricer.cool(kernel, kernel.family),
                   _Work.of(layer), _Energy.of(layer, pricer))

    def __call__(self, m: Any, *numbers: Any) -> tuple[Any, ...]:
        decodes, decode_keys, _, chunks, chunk_queries, chunk_keys, chunk_pairs, _, _, longest = numbers[:len(COUNTS)]
        seconds, computes, measured = numbers[len(COUNTS):]
        work, energy = self.work, self.energy
        flops, queries = work.pair * (decode_keys + chunk_pairs), decodes + chunk_queries
        moved = work.query * queries + work.key * (decode_keys + chunk_keys)
        padded = work.padded_key * decode_keys + work.padded_pair * chunk_pairs + work.padded_chunk * chunks * longest
        seconds = m.maximum(m.maximum(seconds, flops * self.flop_seconds), moved * self.byte_seconds)
        seconds = m.where(computes & measured, seconds * self.cool, seconds)
        action = energy.flop * m.maximum(flops, padded) + energy.l2 * moved
        active = energy.busy * busy_seconds(seconds, self.gpu, m.maximum)
        spent = action + active + energy.byte * moved + energy.written * work.written * queries
        return seconds, spent, m.where(computes, seconds, 0.0), action, active, m.where(computes, active, 0.0)


@define(eq=False)
class TokensSummary:
    """Prices a launch that goes over the tokens of a kind, once for each number of them.

    What is new of a batch to any of a plan's `siblings` is one question to the oracle.
    """

    label: str
    layer: "PerToken"
    repeat: int
    pricer: Pricer
    siblings: "list[TokensSummary]"
    _known: dict[int, Numbers] = field(factory=dict, init=False)

    def of_batch(self, batch: Batch) -> Numbers | None:
        """The numbers of one run, as `AttentionSummary` has them; None where *batch* has nothing for it."""
        if not (rows := self.layer.rows(batch)):
            return None
        if rows not in self._known:
            self._price(batch)
        return self._known[rows]

    def _price(self, batch: Batch) -> None:
        new = [(one, rows) for one in self.siblings if (rows := one.layer.rows(batch)) and rows not in one._known]
        asked: list[Any] = [(one.label, one.layer.of_rows(rows)) for one, rows in new]
        for (one, rows), cost in zip(new, self.pricer.kernels(asked), strict=True):
            if len(one._known) >= MOST:
                one._known.clear()
            one._known[rows] = _numbers(cost.costs)

    def of_batches(self, batches: Batches) -> tuple[Any, ...]:
        """The numbers of one run in each of many steps, as columns."""
        return tuple(np.array([self.of_batch(batch) for batch in batches.batches]).T)


@define(eq=False)
class AttentionSummary:
    """A layer that the oracle has `compiled`; it runs `repeat` times in a step."""

    layer: "AttentionLayer | LatentLayer"
    repeat: int
    compiled: CompiledAttention
    oracle: Any
    floats: StagedFormula
    columns: StagedFormula

    @classmethod
    def of(cls, layer: "AttentionLayer | LatentLayer", repeat: int, compiled: CompiledAttention,
           pricer: Pricer) -> "AttentionSummary":
        formula = _Formula.of(layer, pricer)
        return cls(layer, repeat, compiled, pricer.oracle, StagedFormula(formula, Floats, PRICED),
                   StagedFormula(formula, Arrays, PRICED))

    def of_batch(self, batch: Batch) -> Numbers | None:
        """The numbers of one run, None where *batch* has nothing for the layer.

        Raises ConfigError where the oracle says no positive, finite time.
        """
        counts = self.layer.counts(batch)
        if not (counts[0] or counts[3]):
            return None
        numbers: Numbers = self.floats[counts[0] > 0, counts[3] > 0](*counts, *self.compiled.price(counts))
        if not 0.0 < numbers[0] < inf:
            kernel: Any = self.layer.over(batch)
            check_seconds(self.oracle, kernel, numbers[0])
        return numbers

    def of_batches(self, batches: Batches) -> tuple[Any, ...]:
        """The numbers of one run in each of many steps, as columns."""
        counts = [np.asarray(column, dtype=np.float64) for column in self.layer.columns(batches)]
        numbers = self.columns[batch_kinds(counts)](*counts, *self.compiled.columns(counts))
        seconds = numbers[0]
        if not (seconds.min() > 0 and seconds.max() < inf):
            row = int(np.argmin((seconds > 0) & (seconds < inf)))
            check_seconds(self.oracle, self.layer.sweep(batches)[row], float(seconds[row]))
        return tuple(numbers)


#: A summary of launches that depend on the batch.
LayerSummary = AttentionSummary | TokensSummary | AdapterSummary


@define(eq=False)
class Summaries:
    """Summarizes steps whose plans are priced and whose attention the oracle compiles; `inputs` is the host's.

    Where a batch has nothing for some launches, its step is another one of `plans`.
    """

    pricer: Pricer
    inputs: Inputs
    plans: Plans
    _ready: dict[tuple[BatchLaunch, ...], list[LayerSummary] | None] = field(factory=dict, init=False)
    _compiled: dict["AttentionLayer | LatentLayer", CompiledAttention | None] = field(factory=dict, init=False)
    _launches: tuple[BatchLaunch, ...] | None = field(default=None, init=False)
    _current: list[LayerSummary] | None = field(default=None, init=False)
    _lacking: dict[tuple[Plan, tuple[bool, ...]], Plan] = field(factory=dict, init=False)

    def of_batch(self, plan: Plan, batch: Batch) -> StepSummary | None:
        """The summary of a step of *plan* over *batch*; None where a launch is not compiled."""
        layers = self._layers(plan)
        if layers is None:
            return None
        found = [(layer.repeat, layer.of_batch(batch)) for layer in layers]
        known = self._without(plan, [numbers is None for _, numbers in found]).summary
        seconds = known.seconds + (self.inputs.copy + self.inputs.copy_sequence * batch.sequences)
        joules, compute, action = known.joules, known.compute_bound, known.sm_action_joules
        active, slowed = known.sm_active_joules, known.compute_bound_joules
        for runs, numbers in found:
            if numbers is not None:
                own, spent, computing, of_action, of_active, of_slowed = numbers
                seconds += runs * own
                joules += runs * spent
                compute += runs * computing
                action += runs * of_action
                active += runs * of_active
                slowed += runs * of_slowed
        return StepSummary(seconds, joules, compute, action, active, slowed, known.launch_seconds)

    def of_batches(self, plan: Plan, batches: Sequence[Batch]) -> StepSummary | None:
        """The summaries of many steps of one *plan*, as columns; None where a launch is not compiled, or where some may
        lack it."""
        layers, counted = self._layers(plan), Batches.of(batches)
        if layers is None or (self._partial(plan) and len(counted.chunks.new)):
            return None
        missing = ([layer.of_batch(batches[0]) is None for layer in layers] if self._partial(plan)
                   else [False] * len(layers))
        *columns, launch_seconds = astuple(self._without(plan, missing).summary)
        columns[0] = columns[0] + (self.inputs.copy + self.inputs.copy_sequence * counted.sequences)
        for layer, lacks in zip(layers, missing, strict=True):
            if not lacks:
                columns = [column + layer.repeat * part for column, part
                           in zip(columns, layer.of_batches(counted), strict=True)]
        return StepSummary(*columns, launch_seconds)  # type: ignore[call-arg]

    @staticmethod
    def _partial(plan: Plan) -> bool:
        """Whether some batches have nothing for some launches of *plan*."""
        return any(hasattr(launch.layer, "some") for launch in plan.batch_launches)

    def _without(self, plan: Plan, missing: Sequence[bool]) -> Plan:
        """The plan like *plan* of batches that have nothing for the launches which are *missing*."""
        if not any(missing):
            return plan
        if (key := (plan, tuple(missing))) not in self._lacking:
            if len(self._lacking) >= MOST:
                self._lacking.clear()
            gone = (Op(launch.label, launch.layer) for launch, lacks in zip(plan.batch_launches, missing, strict=False)
                    if lacks)
            self._lacking[key] = self.plans.without(plan, frozenset(gone))
        return self._lacking[key]

    @cached_property
    def complete(self) -> bool:
        """Whether there are summaries of all steps."""
        return self._made_ready(self.plans.batch_launches) is not None

    def _layers(self, plan: Plan) -> list[LayerSummary] | None:
        launches = plan.batch_launches
        if launches is not self._launches:  # most plans have the very same ones, and to look them up takes longer
            if launches not in self._ready:
                self._ready[launches] = self._made_ready(launches)
            self._launches, self._current = launches, self._ready[launches]
        return self._current

    def _made_ready(self, launches: tuple[BatchLaunch, ...]) -> list[LayerSummary] | None:
        others = tuple(launch for launch in launches if not is_of_adapters(launch.layer))
        siblings: list[TokensSummary] = []
        ready = [self._summary(launch, siblings) for launch in others]
        siblings += [summary for summary in ready if isinstance(summary, TokensSummary)]
        if None in ready:
            return None
        adapters = [launch for launch in launches if is_of_adapters(launch.layer)]
        if any(hasattr(launch.layer, "of_loads") for launch in adapters):
            return None
        found = [summary for summary in ready if summary is not None]
        return [*found, AdapterSummary(adapters, self.pricer)] if adapters else found

    def _summary(self, launch: BatchLaunch, siblings: list[TokensSummary]) -> LayerSummary | None:
        """The summary of *launch*, which may have *siblings*; None where there is none."""
        label, repeat = launch.label, launch.repeat
        layer: Any = launch.layer
        if hasattr(layer, "of_rows"):
            return TokensSummary(label, layer, repeat, self.pricer, siblings)
        if hasattr(layer, "columns") and (compiled := self._compile(layer)) is not None:
            return AttentionSummary.of(layer, repeat, compiled, self.pricer)
        return None

    def _compile(self, layer: "AttentionLayer | LatentLayer") -> CompiledAttention | None:
        if layer not in self._compiled:
            self._compiled[layer] = compile_attention(self.pricer.oracle, layer, self.pricer.gpu)
        return self._compiled[layer]
