"""Price steps: from batches to timelines of one rank's kernels and collectives, and the time to launch them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, field

from ksim.compute.graph import BatchDependent, Op
from ksim.compute.kernels import Kernel
from ksim.compute.model import Model
from ksim.cost.graphs import Graphs
from ksim.cost.holes import bind, fill, inputs, lacking
from ksim.cost.lanes import lanes
from ksim.cost.loads import Loads
from ksim.cost.outlook import Outlook
from ksim.cost.overlap import Overlap, left
from ksim.cost.plan import Hole, Plan, Shape
from ksim.cost.plans import MOST, Plans
from ksim.cost.spans import Pricer, of_host
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.flow.filled import Ints
from ksim.flow.load import Load
from ksim.flow.stretch import Lanes
from ksim.flow.timeline import Paced, Span, Timeline
from ksim.network.network import Network
from ksim.specs.deployment import Shard
from ksim.specs.hardware import Gpu
from ksim.specs.host import Host

#: Launches of batches whose spans are kept: few come again, but those that do soon.
MOST_FILLS = 4096
#: Steps whose loads are worked out sooner together than one by one.
TOGETHER = 20


@define
class StepTimer:
    """Prices the kernels and collectives of steps, once for each distinct shape.

    `groups` names the GPUs that meet in each kind of collective; `graphs` says to how many tokens a step is padded and
    how its kernels are launched, and `host` what that takes.  With `overlap`, products run beside their sums.
    """

    model: Model
    shard: Shard
    gpu: Gpu
    oracle: Any = field(repr=False)
    network: Network = field(repr=False)
    groups: Mapping[str, Sequence[int]]
    graphs: Graphs
    host: Host = field(repr=False)
    overlap: Overlap | None = None
    _inputs: dict[int, Span] = field(factory=dict, init=False)
    _fills: dict[tuple[str, Kernel], Span] = field(factory=dict, init=False)
    _known: dict[tuple[int, int, bool], Plan] = field(factory=dict, init=False)
    _pricer: Pricer = field(init=False, repr=False)
    _plans: Plans = field(init=False, repr=False)
    _outlook: Outlook = field(init=False, repr=False)
    _loads: Loads = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._pricer = Pricer(self.gpu, self.oracle, self.network, self.groups)
        self._plans = Plans(self.model, self.shard, self._pricer, self.host, self.overlap)
        self._outlook = Outlook(self.oracle, self.gpu)
        self._loads = Loads(self._pricer, self.host.inputs)
        if self.overlap:
            left(self.gpu, self.overlap.sms)  # or raise before anything is priced

    def price(self, batches: Sequence[Batch]) -> Lanes:
        """What one rank does for each of *batches*, as `timeline` says of one, where data ranks have as many tokens.

        All that is new of them is priced in a few questions to the oracle; there is at least one of them.
        """
        plans = self._whole(batches)
        holes = _holes(plans)
        counted = Batches.of(batches)
        bound = bind(list(holes), batches)
        if bound:
            plans = self._plans.of([(*plan.shape[:-1], missing) for plan, missing
                                    in zip(plans, lacking(bound, len(batches)), strict=True)])
        filled = fill(holes, bound, counted, self._pricer)
        return lanes(plans, filled, inputs(counted, self.host.inputs))

    def _whole(self, batches: Sequence[Batch]) -> list[Plan]:
        """The plan of each of *batches* as if it had something for every hole."""
        if len(self._known) > MOST:
            self._known.clear()
        counts = [*map(_counts, batches)]
        distinct = dict(zip(counts, batches, strict=True))
        new = {count: batch for count, batch in distinct.items() if count not in self._known}
        self._known.update(zip(new, self._plans.of([self._shape(batch) for batch in new.values()]), strict=True))
        if len(distinct) == 1:
            return [self._known[counts[0]]] * len(counts)
        return [self._known[count] for count in counts]

    def timeline(self, batch: Batch, brought: Sequence[int] = ()) -> Timeline:
        """What one rank does for *batch*, where data ranks have *brought* so many tokens, by default as many each.

        Where graphs hold them all, they are padded to the most, as in vLLM, so that all replay the same.
        """
        plan = self._plans.one(self._shape(batch, brought)) if brought else self._known.get(_counts(batch))
        plan = plan or self._whole([batch])[0]
        kernels = [layer.over(batch) for _, layer, _ in plan.holes]
        if not all(kernels):
            missing = frozenset(Op(label, layer) for (label, layer, _), kernel
                                in zip(plan.holes, kernels, strict=True) if kernel is None)
            plan = self._plans.one((*plan.shape[:-1], missing))
        own = [self._fill(label, layer, kernel, batch) for (label, layer, _), kernel
               in zip(plan.holes, filter(None, kernels), strict=True)]
        return plan.timeline((*own, self._copied(batch.sequences)))

    def load(self, batch: Batch) -> Paced:
        """What one rank's step asks of the clock: `timeline` without what only reports look at, and sooner."""
        plan = self._known.get(_counts(batch)) or self._whole([batch])[0]
        return self._loads.load(plan, batch) or self.timeline(batch)

    def loads(self, batches: Sequence[Batch]) -> Sequence[Paced]:
        """The same of many steps, which are worked out together where they are enough to."""
        if len(batches) < TOGETHER:
            return [self.load(batch) for batch in batches]
        plans = self._whole(batches)
        found = self._loads.loads(plans[0], batches) if len(set(plans)) == 1 else None
        if found is None:
            priced = self.price(batches)
            found = Load.of(priced, priced.launch_seconds).rows(len(batches))
        return found

    def _copied(self, sequences: int) -> Span:
        """The small kernels that bring a step's inputs to the GPU."""
        span = self._inputs.get(sequences)
        if span is None:
            costs = self.host.inputs
            span = self._inputs[sequences] = of_host("inputs", costs.copy + costs.copy_sequence * sequences)
        return span

    def _shape(self, batch: Batch, brought: Sequence[int] = ()) -> Shape:
        launching, tokens = self.graphs.of(batch)
        everywhere = None
        if brought and self.shard.data > 1:
            most = self.graphs.padded(max(brought))
            tokens = max(tokens, most) if launching.graphs else tokens
            everywhere = len(brought) * most if most else sum(brought)
        return tokens, batch.logits, launching, everywhere, frozenset()

    def _fill(self, label: str, layer: BatchDependent, kernel: Kernel, batch: Batch) -> Span:
        span = self._fills.get((label, kernel))
        if span is None:
            if len(self._fills) >= MOST_FILLS:
                self._fills.clear()
            span = self._fills[label, kernel] = self._pricer.kernel(
                label, kernel, self._outlook.ask(layer, kernel, batch))
        return span


def _counts(batch: Batch) -> tuple[int, int, bool]:
    """What the plan of a batch depends on."""
    return batch.tokens, batch.logits, not batch.chunks


def _holes(plans: Sequence[Plan]) -> dict[Hole, Ints]:
    """The holes of *plans*, each with the places of those that have it."""
    several = {id(plan.holes): plan.holes for plan in dict.fromkeys(plans)}
    if len(several) == 1:
        return dict.fromkeys(plans[0].holes, np.arange(len(plans)))
    return {hole: np.array([row for row, plan in enumerate(plans) if hole in plan.holes])
            for hole in dict.fromkeys(hole for holes in several.values() for hole in holes)}
