"""Price a step: from a batch to a timeline of one rank's kernels and collectives."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.model import Model
from ksim.cost.energy import joules, sent_joules
from ksim.cost.network import Network
from ksim.cost.oracles import estimate
from ksim.flow.batch import Batch
from ksim.flow.timeline import Lap, Span, Timeline, Totals
from ksim.specs.deployment import Shard
from ksim.specs.hardware import Gpu


@frozen
class Plan:
    """What all steps of so many tokens and samples share: laps, and the attention that is each step's own."""

    laps: tuple[Lap, ...]
    holes: tuple[tuple[str, AttentionLayer, int], ...]  # label, layer, and how often it runs
    totals: Totals


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
    _plans: dict[tuple[int, int], Plan] = field(factory=dict)
    _spans: dict[tuple[str, Kernel | Collective], Span] = field(factory=dict)

    def timeline(self, batch: Batch) -> Timeline:
        """What one rank does for *batch*."""
        key = (batch.tokens, batch.samples)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(*key)
        fills = tuple(self._kernel(label, layer.over(batch)) for label, layer, _ in plan.holes)
        counted = zip(fills, (count for _, _, count in plan.holes), strict=True)
        return plan.totals.plus(counted).timeline(plan.laps, fills)

    def _plan(self, tokens: int, samples: int) -> Plan:
        """Price all but attention; equal layers of attention share one hole."""
        holes: dict[tuple[str, AttentionLayer], int] = {}
        runs: list[int] = []
        laps = []
        for block in self.model.graph(tokens, samples, self.shard).blocks:
            spans: list[Span | int] = []
            for op in block.ops:
                if isinstance(op.kernel, AttentionLayer):
                    hole = holes.setdefault((op.label, op.kernel), len(holes))
                    runs += [0] * (len(holes) - len(runs))
                    runs[hole] += block.repeat
                    spans.append(hole)
                else:
                    spans.append(self._span(op.label, op.kernel))
            laps.append(Lap(tuple(spans), block.repeat))
        counted = ((span, lap.repeat) for lap in laps for span in lap.spans if isinstance(span, Span))
        return Plan(tuple(laps), tuple((label, layer, runs[hole]) for (label, layer), hole in holes.items()),
                    Totals().plus(counted))

    def _span(self, label: str, kernel: Kernel | Collective) -> Span:
        key = (label, kernel)
        if key not in self._spans:
            self._spans[key] = (self._collective(label, kernel) if isinstance(kernel, Collective)
                                else self._kernel(label, kernel))
        return self._spans[key]

    def _kernel(self, label: str, kernel: Kernel) -> Span:
        found, work = estimate(self.oracle, kernel, self.gpu), kernel.work
        return Span(label, kernel.family, found.seconds, joules(kernel, self.gpu.power), work.flops, work.bytes,
                    found.bound, found.waves, found.idle, "", kernel, found.launch, found.source,
                    found.eta, found.low, found.high, found.extrapolated)

    def _collective(self, label: str, collective: Collective) -> Span:
        ranks = self.groups[collective.group]
        route = self.network.route(collective, ranks)
        return Span(label, collective.family, self.network.seconds(collective, ranks),
                    sent_joules(route.sent * collective.bytes, self.gpu.power),
                    bound="communication", group=collective.group,
                    shape=collective, launch=f"{route.algorithm} {route.protocol}", source="network")
