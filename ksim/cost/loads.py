"""Loads of steps: what the clock has to know of them, long before anybody asks for their spans."""

from collections.abc import Sequence

from attrs import define, field

from ksim.compute.kernels.attention import AttentionLayer
from ksim.cost.attending import Attending
from ksim.cost.plan import Hole, Plan
from ksim.cost.spans import Pricer
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.flow.load import Load
from ksim.oracles import CompiledAttention, compile_attention
from ksim.specs.host import Inputs


@define(eq=False)
class Loads:
    """Prices steps of which all is known but attention, where the oracle has a short way to; `inputs` is the host's."""

    pricer: Pricer
    inputs: Inputs
    _ready: dict[tuple[Hole, ...], list[Attending] | None] = field(factory=dict, init=False)
    _layers: dict[AttentionLayer, CompiledAttention | None] = field(factory=dict, init=False)
    _holes: tuple[Hole, ...] | None = field(default=None, init=False)
    _current: list[Attending] | None = field(default=None, init=False)

    def load(self, plan: Plan, batch: Batch) -> Load | None:
        """What a step of *plan* asks of the clock for *batch*; None where there is no short way to say it."""
        ready = self._of(plan)
        if ready is None:
            return None
        known = plan.load
        seconds = known.seconds + (self.inputs.copy + self.inputs.copy_sequence * batch.sequences)
        joules, clocked, core = known.joules, known.clocked, known.core_joules
        busy, watched = known.busy_joules, known.clocked_joules
        for each in ready:
            count, (own, spent, slower, of_core, of_busy, of_slower) = each.repeat, each.asked(batch)
            seconds += count * own
            joules += count * spent
            clocked += count * slower
            core += count * of_core
            busy += count * of_busy
            watched += count * of_slower
        return Load(seconds, joules, clocked, core, busy, watched, known.launch_seconds)

    def loads(self, plan: Plan, batches: Sequence[Batch]) -> list[Load] | None:
        """The same of many steps of one *plan*."""
        ready = self._of(plan)
        if ready is None:
            return None
        counted = Batches.of(batches)
        found = plan.load.after(self.inputs.copy + self.inputs.copy_sequence * counted.sequences)
        for each in ready:
            found = found.plus(each.columns(counted), each.repeat)
        return found.rows(len(batches))

    def _of(self, plan: Plan) -> list[Attending] | None:
        holes = plan.holes
        if holes is not self._holes:  # most plans have the very same ones, and to look them up takes longer
            if holes not in self._ready:
                self._ready[holes] = self._made_ready(holes)
            self._holes, self._current = holes, self._ready[holes]
        return self._current

    def _made_ready(self, holes: tuple[Hole, ...]) -> list[Attending] | None:
        ready = [Attending.of(layer, repeat, found, self.pricer) for _, layer, repeat in holes
                 if isinstance(layer, AttentionLayer) and (found := self._compiled(layer)) is not None]
        return ready if len(ready) == len(holes) else None

    def _compiled(self, layer: AttentionLayer) -> CompiledAttention | None:
        if layer not in self._layers:
            self._layers[layer] = compile_attention(self.pricer.oracle, layer, self.pricer.gpu)
        return self._layers[layer]
