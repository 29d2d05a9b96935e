"""Summaries of steps: what the clock has to know of them, long before anybody asks for their kernels."""

from collections.abc import Sequence
from typing import Any

from attrs import astuple, define, field

from ksim.compute.kernels.attention import AttentionLayer
from ksim.cost.attention import AttentionSummary
from ksim.cost.parts import BatchLaunch
from ksim.cost.plan import Plan
from ksim.cost.pricer import Pricer
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.flow.costs import StepSummary
from ksim.oracles import CompiledAttention, compile_attention
from ksim.specs.host import Inputs

__all__ = ["Summaries"]


@define(eq=False)
class Summaries:
    """Summarizes steps of which all is known but attention, where the oracle compiles that; `inputs` is the host's."""

    pricer: Pricer
    inputs: Inputs
    _ready: dict[tuple[BatchLaunch, ...], list[AttentionSummary] | None] = field(factory=dict, init=False)
    _compiled: dict[AttentionLayer, CompiledAttention | None] = field(factory=dict, init=False)
    _launches: tuple[BatchLaunch, ...] | None = field(default=None, init=False)
    _current: list[AttentionSummary] | None = field(default=None, init=False)

    def of_batch(self, plan: Plan, batch: Batch) -> StepSummary | None:
        """A step of *plan* over *batch*; None where a launch is not compiled."""
        layers = self._layers(plan)
        if layers is None:
            return None
        known = plan.summary
        seconds = known.seconds + (self.inputs.copy + self.inputs.copy_sequence * batch.sequences)
        joules, compute, action = known.joules, known.compute_bound, known.sm_action_joules
        active, slowed = known.sm_active_joules, known.compute_bound_joules
        for layer in layers:
            runs, (own, spent, computing, of_action, of_active, of_slowed) = layer.repeat, layer.of_batch(batch)
            seconds += runs * own
            joules += runs * spent
            compute += runs * computing
            action += runs * of_action
            active += runs * of_active
            slowed += runs * of_slowed
        return StepSummary(seconds, joules, compute, action, active, slowed, known.launch_seconds)

    def of_batches(self, plan: Plan, batches: Sequence[Batch]) -> list[StepSummary] | None:
        """The same of many steps of one *plan*."""
        layers = self._layers(plan)
        if layers is None:
            return None
        counted = Batches.of(batches)
        *columns, launch_seconds = astuple(plan.summary)
        columns[0] = columns[0] + (self.inputs.copy + self.inputs.copy_sequence * counted.sequences)
        for layer in layers:
            columns = [column + layer.repeat * part for column, part
                       in zip(columns, layer.of_batches(counted), strict=True)]
        summary: Any = StepSummary(*columns, launch_seconds)  # type: ignore[call-arg]
        return [*summary.rows(len(batches))]

    def _layers(self, plan: Plan) -> list[AttentionSummary] | None:
        launches = plan.batch_launches
        if launches is not self._launches:  # most plans have the very same ones, and to look them up takes longer
            if launches not in self._ready:
                self._ready[launches] = self._made_ready(launches)
            self._launches, self._current = launches, self._ready[launches]
        return self._current

    def _made_ready(self, launches: tuple[BatchLaunch, ...]) -> list[AttentionSummary] | None:
        ready = [AttentionSummary.of(layer, repeat, compiled, self.pricer) for _, layer, repeat in launches
                 if isinstance(layer, AttentionLayer) and (compiled := self._compile(layer)) is not None]
        return ready if len(ready) == len(launches) else None

    def _compile(self, layer: AttentionLayer) -> CompiledAttention | None:
        if layer not in self._compiled:
            self._compiled[layer] = compile_attention(self.pricer.oracle, layer, self.pricer.gpu)
        return self._compiled[layer]
