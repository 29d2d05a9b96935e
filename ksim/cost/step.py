"""Price a step: from a batch to a timeline of one rank's kernels and collectives."""

from collections.abc import Mapping, Sequence
from math import nan, sqrt
from typing import Any

from attrs import define, field, frozen

from ksim.compute.graph import Collective, Op
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import Attention, AttentionLayer
from ksim.compute.model import Model
from ksim.cost.energy import joules, sent_joules
from ksim.cost.network import Network
from ksim.cost.oracles import Estimate, estimates
from ksim.cost.outlook import Outlook
from ksim.flow.batch import Batch
from ksim.flow.timeline import Lap, Span, Timeline, Totals
from ksim.specs.deployment import Shard
from ksim.specs.hardware import Gpu

#: Batches whose attention is kept: few come again, but those that do soon.
MOST_FILLS = 4096


@frozen
class Plan:
    """What all steps of so many tokens and samples share: laps, and the attention that is each step's own.

    `below` and `above` are the squares of how far the intervals of the laps reach.
    """

    laps: tuple[Lap, ...]
    holes: tuple[tuple[str, AttentionLayer, int], ...]  # label, layer, and how often it runs
    totals: Totals
    below: float
    above: float

    def timeline(self, fills: tuple[Span, ...]) -> Timeline:
        """The step whose attention *fills* are: a family of its own, which errs alike in all layers."""
        totals = self.totals
        seconds, energy, flops, moved = totals.seconds, totals.joules, totals.flops, totals.bytes
        below, above, outside = 0.0, 0.0, totals.extrapolated
        for span, (_, _, count) in zip(fills, self.holes, strict=True):
            each = count * span.seconds
            seconds += each
            energy += count * span.joules
            flops += count * span.flops
            moved += count * span.bytes
            below += each - count * span.low
            above += count * span.high - each
            outside += each * span.extrapolated
        return Timeline(self.laps, fills, seconds, energy, flops, moved, seconds - sqrt(self.below + below * below),
                        seconds + sqrt(self.above + above * above), outside)


@define
class StepTimer:
    """Asks the oracle about kernels and the network about collectives, once for each distinct shape.

    `groups` names the GPUs that meet in each kind of collective.
    """

    model: Model
    shard: Shard
    gpu: Gpu
    oracle: Any
    network: Network
    groups: Mapping[str, Sequence[int]]
    _plans: dict[tuple[int, int, int | None], Plan] = field(factory=dict, init=False)
    _spans: dict[tuple[str, Kernel | Collective], Span] = field(factory=dict, init=False)
    _fills: dict[tuple[str, Attention], Span] = field(factory=dict, init=False)
    _outlook: Outlook = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._outlook = Outlook(self.oracle, self.gpu)

    def timeline(self, batch: Batch, everywhere: int | None = None) -> Timeline:
        """What one rank does for *batch*, where all data ranks have *everywhere* tokens, by default as many each."""
        key = (batch.tokens, batch.samples, everywhere if self.shard.data > 1 else None)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(*key)
        return plan.timeline(tuple([self._attention(label, layer, batch) for label, layer, _ in plan.holes]))

    def _attention(self, label: str, layer: AttentionLayer, batch: Batch) -> Span:
        kernel = layer.over(batch)
        span = self._fills.get((label, kernel))
        if span is None:
            if len(self._fills) >= MOST_FILLS:
                self._fills.clear()
            span = self._fills[label, kernel] = self._kernel(label, kernel, self._outlook.ask(layer, kernel, batch))
        return span

    def _plan(self, tokens: int, samples: int, everywhere: int | None) -> Plan:
        """Price all but attention; equal layers of attention share one hole."""
        holes: dict[tuple[str, AttentionLayer], int] = {}
        runs: list[int] = []
        laps = []
        blocks = self.model.graph(tokens, samples, self.shard, everywhere).blocks
        self._price([op for block in blocks for op in block.ops])
        for block in blocks:
            spans: list[Span | int] = []
            for op in block.ops:
                if isinstance(op.kernel, AttentionLayer):
                    hole = holes.setdefault((op.label, op.kernel), len(holes))
                    runs += [0] * (len(holes) - len(runs))
                    runs[hole] += block.repeat
                    spans.append(hole)
                else:
                    spans.append(self._spans[op.label, op.kernel])
            laps.append(Lap(tuple(spans), block.repeat))
        totals = Totals.of((span, lap.repeat) for lap in laps for span in lap.spans if isinstance(span, Span))
        return Plan(tuple(laps), tuple((label, layer, runs[hole]) for (label, layer), hole in holes.items()), totals,
                    sum(reach**2 for reach in totals.below.values()), sum(reach**2 for reach in totals.above.values()))

    def _price(self, ops: Sequence[Op]) -> None:
        """Price all of *ops* that are new, in one question to the oracle; attention waits for its batch."""
        kernels: dict[tuple[str, Kernel], None] = {}
        for op in ops:
            if isinstance(op.kernel, AttentionLayer) or (op.label, op.kernel) in self._spans:
                continue
            if isinstance(op.kernel, Collective):
                self._spans[op.label, op.kernel] = self._collective(op.label, op.kernel)
            else:
                kernels[op.label, op.kernel] = None
        answers = estimates(self.oracle, [kernel for _, kernel in kernels], self.gpu) if kernels else []
        for (label, kernel), found in zip(kernels, answers, strict=True):
            self._spans[label, kernel] = self._kernel(label, kernel, found)

    def _kernel(self, label: str, kernel: Kernel, found: Estimate) -> Span:
        work = kernel.work
        return Span(label, kernel.family, found.seconds, joules(kernel, self.gpu.power), work.flops, work.bytes,
                    found.bound, found.waves, found.idle, "", kernel, found.launch, found.source,
                    found.eta, found.low, found.high, found.extrapolated)

    def _collective(self, label: str, collective: Collective) -> Span:
        ranks = self.groups[collective.group]
        route = self.network.route(collective, ranks)
        seconds, least = self.network.seconds(collective, ranks), route.least(collective.bytes)
        low, high = self.network.interval(collective, ranks)
        return Span(label, collective.family, seconds, sent_joules(route.sent * collective.bytes, self.gpu.power),
                    bound="communication", group=collective.group,
                    shape=collective, launch=f"{route.algorithm} {route.protocol}", source="network",
                    eta=seconds / least if least else nan, low=low, high=high)
