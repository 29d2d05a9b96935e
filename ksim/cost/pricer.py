"""Price launches: what a kernel, or a collective, costs one rank."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
from attrs import field, frozen

from ksim.compute.graph import Collective, HostCopy
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.sweep import KernelSweep
from ksim.cost.energy import COMMUNICATING, Actions, actions, joules, sending
from ksim.flow.costs import Costs
from ksim.flow.kernels import BOUNDS, COMPUTE, KernelColumns, KernelCost, KernelKind, Shapes
from ksim.network.network import Network
from ksim.oracles import Estimate, Estimates, estimates
from ksim.specs.hardware import Gpu

__all__ = ["Pricer", "of_host"]

#: Who prices at the clocks that GPUs were measured at.
MEASURED = ("measured", "learned")


def of_host(label: str, seconds: float) -> KernelCost:
    """What the host has a GPU do, or wait, for so many seconds."""
    return KernelCost(label, label, Costs.of(seconds=seconds), bound="launch", source="host")


@frozen
class Pricer:
    """Asks the oracle about kernels on `gpu`, and the network about collectives.

    `groups` names the GPUs that meet in each kind of collective.
    """

    gpu: Gpu
    oracle: Any = field(repr=False)
    network: Network = field(repr=False)
    groups: Mapping[str, Sequence[int]]

    def kernels(self, launches: Sequence[tuple[str, Kernel | Collective]]) -> list[KernelCost]:
        """Price all of *launches*, each with its label, in one question to the oracle."""
        kernels = [launched for _, launched in launches if not isinstance(launched, Collective | HostCopy)]
        answers = iter(estimates(self.oracle, kernels, self.gpu) if kernels else ())
        return [self.collective(label, launched) if isinstance(launched, Collective)
                else self._copy(label, launched) if isinstance(launched, HostCopy)
                else self._kernel(label, launched, next(answers)) for label, launched in launches]

    def _copy(self, label: str, copy: HostCopy) -> KernelCost:
        """A copy from host memory, which keeps no SM busy."""
        energy = joules(Actions(hbm=copy.bytes), self.gpu.power)
        costs = Costs.of(seconds=copy.seconds, joules=energy.total, bytes=copy.bytes, sm_action_joules=energy.core)
        return KernelCost(label, copy.family, costs, str(copy), bound="communication", source="network", launch="PCIe")

    def kernel(self, label: str, kernel: Kernel) -> KernelCost:
        """Price one kernel."""
        return self.kernels([(label, kernel)])[0]

    def sweep(self, labels: Sequence[str], sweep: KernelSweep) -> KernelColumns:
        """Price many kernels in one question; one label and family go for as many of them as another, in their
        order."""
        found = estimates(self.oracle, sweep, self.gpu)
        measured = np.array([source in MEASURED for source in found.sources])[found.source]
        cool: Any = sweep.spread([self.cool(family) for family in sweep.families])
        costs, cool = self._costs(sweep.kernel, found, found.bound == COMPUTE, np.where(measured, cool, 1.0))
        kinds, kind = _kinds(labels, sweep, found)
        return KernelColumns(
            kinds=kinds, kind=kind, shapes=_shapes_of(sweep), costs=costs, waves=found.waves.copy(), idle=found.idle,
            roofline_ratio=cool * found.roofline_ratio, hidden=np.broadcast_to(0.0, len(sweep)))

    def _kernel(self, label: str, kernel: Kernel, found: Estimate) -> KernelCost:
        """What the oracle *found*, at the boost clock, which may not be that of its measurements."""
        cool = self.cool(kernel.family) if found.source in MEASURED else 1.0
        costs, cool = self._costs(kernel, found, found.bound == "compute", cool)
        return KernelCost(label, kernel.family, costs, str(kernel), bound=found.bound, waves=found.waves,
                          idle=found.idle, launch=found.launch, source=found.source,
                          roofline_ratio=cool * found.roofline_ratio)

    def _costs(self, kernel: Any, found: Any, computes: Any, cool: Any) -> tuple[Costs, Any]:
        """What a kernel costs, or many whose numbers are columns, as the oracle *found* it.

        Where compute limits it, it takes *cool* of what was measured at the boost clock: that share is returned, too.
        """
        cool = cool * computes + (1 - computes)
        seconds, work = cool * found.seconds, kernel.work
        energy = joules(actions(kernel, seconds, self.gpu), self.gpu.power)
        return Costs.of(
            seconds=seconds, joules=energy.total, flops=work.flops, bytes=work.bytes,
            extrapolated=seconds * found.extrapolated, compute_bound=seconds * computes, sm_action_joules=energy.core,
            sm_active_joules=energy.busy, compute_bound_joules=energy.busy * computes,
            below=seconds - cool * found.low, above=cool * found.high - seconds), cool

    def cool(self, family: str) -> float:
        """The share of what was measured that kernels bound by arithmetic take at the boost clock."""
        clocks = self.gpu.power.clocks
        return clocks.measured.get(family, 1.0) if clocks else 1.0

    def sent(self, collective: Collective) -> float:
        """Bytes that a rank sends, on average."""
        return self.network.route(collective, self.groups[collective.group]).sent * collective.bytes

    def sending(self, collective: Collective) -> Actions:
        """What one rank does in *collective*."""
        ranks = self.groups[collective.group]
        route, seconds = self.network.route(collective, ranks), self.network.seconds(collective, ranks)
        share = collective.sms / self.gpu.sms if collective.sms else COMMUNICATING
        return sending(route.sent * collective.bytes, route.routed * collective.bytes, seconds, share)

    def collective(self, label: str, collective: Collective) -> KernelCost:
        ranks = self.groups[collective.group]
        route = self.network.route(collective, ranks)
        seconds, least = self.network.seconds(collective, ranks), route.least(collective.bytes)
        low, high = self.network.interval(collective, ranks)
        energy = joules(self.sending(collective), self.gpu.power)
        costs = Costs.of(seconds=seconds, joules=energy.total, sm_action_joules=energy.core,
                         sm_active_joules=energy.busy, below=seconds - low, above=high - seconds)
        return KernelCost(label, collective.family, costs, str(collective), bound="communication",
                          group=collective.group, launch=f"{route.algorithm} {route.protocol}", source="network",
                          roofline_ratio=seconds / least if least else nan, sms=collective.sms)


def _kinds(labels: Sequence[str], sweep: KernelSweep, found: Estimates) -> tuple[list[KernelKind], Any]:
    """The kinds of the kernels of a sweep, and which of them each is."""
    bounds, launches, sources = len(BOUNDS), len(found.launches), len(found.sources)
    number = (found.bound * launches + found.launch) * sources + found.source
    if len(labels) > 1:
        number = number + np.repeat(np.arange(len(labels)) * (bounds * launches * sources), len(sweep) // len(labels))
    known: dict[int, int] = {}
    kind = np.array([known.setdefault(code, len(known)) for code in number.tolist()], dtype=np.int32)
    kinds = []
    for code in known:
        label, rest = divmod(code, bounds * launches * sources)
        bound, rest = divmod(rest, launches * sources)
        launch, source = divmod(rest, sources)
        kinds.append(KernelKind(labels[label], sweep.families[label], BOUNDS[bound], "", found.launches[launch],
                                found.sources[source]))
    return kinds, kind


def _shapes_of(sweep: KernelSweep) -> Shapes:
    """How the kernels of *sweep* print: a text with columns of numbers, where their class has such."""
    if hasattr(sweep.kernel, "printed"):
        template, numbers = sweep.kernel.printed
        return Shapes.numbered(template, len(sweep), numbers)
    return Shapes.of(sweep.shapes())
