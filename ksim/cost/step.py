"""Price a step: from a batch to a timeline of one rank's kernels and collectives, and the time to launch them."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from attrs import define, evolve, field, frozen

from ksim.compute.graph import Op
from ksim.compute.kernels import Kernel
from ksim.compute.layers import Layer
from ksim.compute.model import Model
from ksim.cost.graphs import Graphs, Launching
from ksim.cost.launches import Launches
from ksim.cost.network import Network
from ksim.cost.outlook import Outlook
from ksim.cost.overlap import Overlap, Summed, left, overlapped, paired
from ksim.cost.spans import Pricer
from ksim.flow.batch import Batch
from ksim.flow.stretch import Lanes
from ksim.flow.timeline import Lap, Span, Timeline, Totals
from ksim.specs.deployment import Shard
from ksim.specs.hardware import Gpu
from ksim.specs.host import Host

#: Launches of batches whose spans are kept: few come again, but those that do soon.
MOST_FILLS = 4096


#: Tokens, samples, how they are launched, and the tokens of all data ranks.
Shape = tuple[int, int, Launching, int | None]


@frozen
class Plan:
    """What all steps of so many tokens and samples share: laps, and what is each step's own, its inputs and attention.

    `below` and `above` are the squares of how far the intervals of the laps reach.
    """

    laps: tuple[Lap, ...]
    holes: tuple[tuple[str, Layer, int], ...]  # label, layer, and how often it runs
    totals: Totals
    below: float
    above: float
    launching: Launching
    launch_seconds: float

    def timeline(self, fills: tuple[Span, ...]) -> Timeline:
        """The step whose attention and inputs *fills* are; attention is a family, which errs alike in all layers."""
        totals = self.totals
        seconds, energy, flops, moved = totals.seconds + fills[-1].seconds, totals.joules, totals.flops, totals.bytes
        below, above, outside, clocked = 0.0, 0.0, totals.extrapolated, totals.clocked
        core, busy, paced = totals.core_joules, totals.busy_joules, totals.clocked_joules
        for span, (_, _, count) in zip(fills, self.holes, strict=False):
            each = count * span.seconds
            seconds += each
            energy += count * span.joules
            flops += count * span.flops
            moved += count * span.bytes
            below += each - count * span.low
            above += count * span.high - each
            outside += each * span.extrapolated
            clocked += each * span.clocked
            core += count * span.core_joules
            busy += count * span.busy_joules
            paced += count * span.busy_joules * span.clocked
        return Timeline(self.laps, fills, seconds, energy, flops, moved, seconds - sqrt(self.below + below * below),
                        seconds + sqrt(self.above + above * above), outside, clocked, self.launching.value,
                        self.launch_seconds, core, busy, paced)


def _of_host(label: str, seconds: float) -> Span:
    return Span(label, label, seconds, bound="launch", source="host", low=seconds, high=seconds)


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
    _plans: dict[Shape, Plan] = field(factory=dict, init=False)
    _partial: dict[tuple[Shape, frozenset[Op]], Plan] = field(factory=dict, init=False)
    _inputs: dict[int, Span] = field(factory=dict, init=False)
    _spans: dict[Op | Summed, tuple[Span, ...]] = field(factory=dict, init=False)
    _fills: dict[tuple[str, Kernel], Span] = field(factory=dict, init=False)
    _pricer: Pricer = field(init=False, repr=False)
    _outlook: Outlook = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._pricer = Pricer(self.gpu, self.oracle, self.network, self.groups)
        self._outlook = Outlook(self.oracle, self.gpu)
        if self.overlap:
            left(self.gpu, self.overlap.sms)  # or raise before anything is priced

    def timeline(self, batch: Batch, brought: Sequence[int] = ()) -> Timeline:
        """What one rank does for *batch*, where data ranks have *brought* so many tokens, by default as many each.

        Where graphs hold them all, they are padded to the most, as in vLLM, so that all replay the same.
        """
        launching, tokens = self.graphs.of(batch)
        everywhere = None
        if brought and self.shard.data > 1:
            most = self.graphs.padded(max(brought))
            tokens = max(tokens, most) if launching.graphs else tokens
            everywhere = len(brought) * most if most else sum(brought)
        key = (tokens, batch.samples, launching, everywhere)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(key)
        kernels = [layer.over(batch) for _, layer, _ in plan.holes]
        if not all(kernels):
            plan = self._without(key, frozenset(Op(label, layer) for (label, layer, _), kernel
                                                in zip(plan.holes, kernels, strict=True) if kernel is None))
        own = [self._fill(label, layer, kernel, batch) for (label, layer, _), kernel
               in zip(plan.holes, filter(None, kernels), strict=True)]
        return plan.timeline((*own, self._copied(batch.sequences)))

    def load(self, batch: Batch) -> Timeline:
        return self.timeline(batch)

    def loads(self, batches: Sequence[Batch]) -> Sequence[Timeline]:
        return [self.timeline(batch) for batch in batches]

    def price(self, batches: Sequence[Batch]) -> Lanes:
        """What `timeline` says of each of *batches*, in columns."""
        return Lanes.of([self.timeline(batch) for batch in batches])

    def _copied(self, sequences: int) -> Span:
        """The small kernels that bring a step's inputs to the GPU."""
        span = self._inputs.get(sequences)
        if span is None:
            costs = self.host.inputs
            seconds = costs.copy + costs.copy_sequence * sequences
            span = self._inputs[sequences] = _of_host("inputs", seconds)
        return span

    def _without(self, key: Shape, missing: frozenset[Op]) -> Plan:
        """The plan of batches that have nothing for *missing*."""
        if (key, missing) not in self._partial:
            self._partial[key, missing] = self._plan(key, missing)
        return self._partial[key, missing]

    def _fill(self, label: str, layer: Layer, kernel: Kernel, batch: Batch) -> Span:
        span = self._fills.get((label, kernel))
        if span is None:
            if len(self._fills) >= MOST_FILLS:
                self._fills.clear()
            span = self._fills[label, kernel] = self._pricer.kernel(
                label, kernel, self._outlook.ask(layer, kernel, batch))
        return span

    def _plan(self, key: Shape, missing: frozenset[Op] = frozenset()) -> Plan:
        """Price all but attention; equal layers of attention share one hole, and the step's inputs have the last."""
        tokens, samples, launching, everywhere = key
        holes: dict[tuple[str, Layer], int] = {}
        runs: list[int] = []
        laps = []
        blocks = self.model.graph(tokens, samples, self.shard, everywhere).blocks
        launched = [list(paired(block.ops, self.overlap)) if self.overlap else block.ops for block in blocks]
        self._price([op for ops in launched for op in ops])
        for block, ops in zip(blocks, launched, strict=True):
            spans: list[Span | int] = []
            for op in ops:
                if (priced := self._spans.get(op)) is not None:
                    spans += priced
                elif isinstance(op, Op) and isinstance(op.kernel, Layer) and op not in missing:
                    hole = holes.setdefault((op.label, op.kernel), len(holes))
                    runs += [0] * (len(holes) - len(runs))
                    runs[hole] += block.repeat
                    spans.append(hole)
            laps.append(Lap(tuple(spans), block.repeat))
        launches = Launches.of(launching, laps)
        laps = [Lap((len(holes),)), *laps, Lap((_of_host("gaps", launches.gaps(self.host.inputs)),))]
        totals = Totals.of((span, lap.repeat) for lap in laps for span in lap.spans if isinstance(span, Span))
        return Plan(tuple(laps), tuple((label, layer, runs[hole]) for (label, layer), hole in holes.items()), totals,
                    sum(reach**2 for reach in totals.below.values()), sum(reach**2 for reach in totals.above.values()),
                    launching, launches.seconds(self.host.worker))

    def _price(self, ops: Sequence[Op | Summed]) -> None:
        """Price all of *ops* that are new, most in one question to the oracle; layers wait for their batch.

        Of what ranks do unequally, the fullest one's time counts, and the work and energy of what they do on average.
        """
        new = dict.fromkeys(op for op in ops if op not in self._spans)
        whole = {op: (op.label, op.kernel) for op in new if isinstance(op, Op) and not isinstance(op.kernel, Layer)}
        unequal = {op: (op.label, op.mean) for op in whole if op.mean is not None}
        spans = self._pricer.spans([*whole.values(), *unequal.values()])
        self._spans.update((op, (span,)) for op, span in zip(whole, spans, strict=False))
        for op, mean in zip(unequal, spans[len(whole):], strict=True):
            (fullest,) = self._spans[op]
            self._spans[op] = (evolve(fullest, joules=mean.joules, core_joules=mean.core_joules,
                                      busy_joules=mean.busy_joules, flops=mean.flops, bytes=mean.bytes),)
        if self.overlap:
            self._spans.update((op, overlapped(self._pricer, op, self.overlap)) for op in new if isinstance(op, Summed))
