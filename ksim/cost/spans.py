"""Price launches: a kernel or a collective becomes a span of one rank's time."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
from attrs import field, frozen

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.sweep import KernelSweep
from ksim.cost.energy import COMMUNICATING, Actions, actions, joules, sending
from ksim.flow.bounds import COMPUTE
from ksim.flow.filled import Filled, Ints
from ksim.flow.timeline import Span
from ksim.network.network import Network
from ksim.oracles import Estimate, Estimates, estimate, estimates
from ksim.specs.hardware import Gpu

#: Who prices at the clocks that GPUs were measured at.
MEASURED = ("measured", "learned")


def of_host(label: str, seconds: float) -> Span:
    """What the host has a GPU do, or wait, for so many seconds."""
    return Span(label, label, seconds, bound="launch", source="host", low=seconds, high=seconds)


@frozen
class Pricer:
    """Asks the oracle about kernels on `gpu`, and the network about collectives.

    `groups` names the GPUs that meet in each kind of collective.
    """

    gpu: Gpu
    oracle: Any = field(repr=False)
    network: Network = field(repr=False)
    groups: Mapping[str, Sequence[int]]

    def spans(self, launches: Sequence[tuple[str, Kernel | Collective]]) -> list[Span]:
        """Price all of *launches*, each with its label, in one question to the oracle."""
        kernels = [launched for _, launched in launches if not isinstance(launched, Collective)]
        answers = iter(estimates(self.oracle, kernels, self.gpu) if kernels else ())
        return [self.collective(label, launched) if isinstance(launched, Collective)
                else self.kernel(label, launched, next(answers)) for label, launched in launches]

    def kernel(self, label: str, kernel: Kernel, found: Estimate | None = None) -> Span:
        """What the oracle says, or has *found*, at the boost clock, which may not be that of its measurements."""
        found = found or estimate(self.oracle, kernel, self.gpu)
        work = kernel.work
        cool = self.cool(kernel.family) if found.bound == "compute" and found.source in MEASURED else 1.0
        seconds = cool * found.seconds
        energy = joules(actions(kernel, seconds, self.gpu), self.gpu.power)
        return Span(label, kernel.family, seconds, energy.total, work.flops, work.bytes, found.bound, found.waves,
                    found.idle, "", kernel, found.launch, found.source, cool * found.roofline_ratio, cool * found.low,
                    cool * found.high, found.extrapolated, energy.core, energy.busy)

    def filled(self, label: str, kernels: KernelSweep, found: Estimates, repeat: int, rows: Ints) -> Filled:
        """The same of many *kernels* of attention, in steps *rows*."""
        kernel = kernels.kernel
        work, throttled = kernel.work, np.array([source in MEASURED for source in found.sources])
        cool = np.where((found.bound == COMPUTE) & throttled[found.source], self.cool(kernel.family), 1.0)
        seconds: Any = cool * found.seconds
        energy: Any = joules(actions(kernel, seconds, self.gpu), self.gpu.power)
        moved: Any = work.bytes
        done: Any = work.flops
        bound, launch, source = (codes.astype(np.int16) for codes in (found.bound, found.launch, found.source))
        waves = found.waves.copy()  # which is part of a larger table
        return Filled(label, kernel.family, repeat, rows, seconds, energy.total, done, moved, bound, waves, found.idle,
                      launch, source, cool * found.roofline_ratio, cool * found.low, cool * found.high,
                      found.extrapolated, energy.core, energy.busy, found.launches, found.sources, kernels.__getitem__,
                      kernels.shapes)

    def cool(self, family: str) -> float:
        """The share of what was measured that kernels of a *family* bound by arithmetic take at the boost clock."""
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

    def collective(self, label: str, collective: Collective) -> Span:
        ranks = self.groups[collective.group]
        route = self.network.route(collective, ranks)
        seconds, least = self.network.seconds(collective, ranks), route.least(collective.bytes)
        low, high = self.network.interval(collective, ranks)
        energy = joules(self.sending(collective), self.gpu.power)
        return Span(label, collective.family, seconds, energy.total, bound="communication", group=collective.group,
                    shape=collective, launch=f"{route.algorithm} {route.protocol}", source="network",
                    eta=seconds / least if least else nan, low=low, high=high, core_joules=energy.core,
                    busy_joules=energy.busy, sms=collective.sms)
