"""Loads of steps: what the clock has to know of them, long before anybody asks for their spans."""

from collections.abc import Sequence
from math import inf

import numpy as np
from attrs import define, field

from ksim.compute.kernels.attention import AttentionLayer
from ksim.cost.answers import Singly, singly
from ksim.cost.oracles import Estimate, bounds, check
from ksim.cost.plan import Hole, Plan
from ksim.cost.spans import Pricer
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.flow.load import Load
from ksim.specs.host import Inputs


@define(eq=False)
class Attending:
    """A layer of attention that runs so often in a step, made ready to be priced batch by batch."""

    layer: AttentionLayer
    repeat: int
    singly: Singly

    def load(self, batch: Batch, pricer: Pricer) -> Load:
        """One of them over *batch*; raises ConfigError where the oracle says no positive, finite number."""
        kernel = self.layer.over(batch)
        seconds, computes, within = self.singly.price(kernel)
        seconds = max(seconds, *bounds(kernel, pricer.gpu))
        if not 0.0 < seconds < inf:
            check(pricer.oracle, kernel, Estimate(seconds, ""))
        return pricer.load(kernel, seconds, computes, within)

    def columns(self, batches: Batches, pricer: Pricer) -> Load:
        """Those over each of *batches*, as columns."""
        kernel = self.layer.columns(batches)
        seconds, computes, within = self.singly.columns(kernel)
        seconds = np.maximum(seconds, np.maximum(*bounds(kernel, pricer.gpu)))
        for row in np.flatnonzero(~((seconds > 0) & (seconds < inf)))[:1].tolist():
            check(pricer.oracle, kernel.at(row), Estimate(float(seconds[row]), ""))
        return pricer.load(kernel, seconds, computes, within)


@define(eq=False)
class Loads:
    """Prices steps of which all is known but attention, where the oracle has a short way to; `inputs` is the host's."""

    pricer: Pricer
    inputs: Inputs
    _ready: dict[Plan, list[Attending] | None] = field(factory=dict, init=False)
    _layers: dict[AttentionLayer, Singly | None] = field(factory=dict, init=False)

    def load(self, plan: Plan, batch: Batch) -> Load | None:
        """What a step of *plan* asks of the clock for *batch*; None where there is no short way to say it."""
        ready = self._of(plan)
        if ready is None:
            return None
        found = plan.load.after(self.inputs.copy + self.inputs.copy_sequence * batch.sequences)
        for each in ready:
            found = found.plus(each.load(batch, self.pricer), each.repeat)
        return found

    def loads(self, plan: Plan, batches: Sequence[Batch]) -> list[Load] | None:
        """The same of many steps of one *plan*."""
        ready = self._of(plan)
        if ready is None:
            return None
        counted = Batches.of(batches)
        found = plan.load.after(self.inputs.copy + self.inputs.copy_sequence * counted.sequences)
        for each in ready:
            found = found.plus(each.columns(counted, self.pricer), each.repeat)
        return found.rows(len(batches))

    def _of(self, plan: Plan) -> list[Attending] | None:
        if plan not in self._ready:
            self._ready[plan] = self._made_ready(plan.holes)
        return self._ready[plan]

    def _made_ready(self, holes: tuple[Hole, ...]) -> list[Attending] | None:
        ready = [Attending(layer, repeat, found) for _, layer, repeat in holes
                 if isinstance(layer, AttentionLayer) and (found := self._singly(layer)) is not None]
        return ready if len(ready) == len(holes) else None

    def _singly(self, layer: AttentionLayer) -> Singly | None:
        if layer not in self._layers:
            self._layers[layer] = singly(self.pricer.oracle, layer, self.pricer.gpu)
        return self._layers[layer]
