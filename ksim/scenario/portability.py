"""How far kernels are from the roofline, and whether that distance is the same on other GPUs.

``eta`` is a kernel's time divided by the time that the roofline allows.  A family of kernels with a small eta that is
the same on every GPU can be trusted on a GPU that nobody has measured.  A family whose eta is large, and different on
each GPU, cannot.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, inf, isnan, log

from attrs import evolve, frozen

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.flow.batch import Batch
from ksim.flow.steps import KernelCost
from ksim.foundation.errors import KsimError
from ksim.foundation.units import DType
from ksim.oracles import bounds
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.specs.hardware import Gpu


@frozen
class Zone:
    """A part of the map of families: half-open intervals of eta and of its spread, and what they mean."""

    name: str
    means: str
    eta: tuple[float, float]
    spread: tuple[float, float]


#: From here on, eta counts as large, and its spread over several GPUs (the largest over the smallest) as wide.  The map
#: follows KernelSight-LM (arXiv 2606.28565, Fig. 11), which gives no numbers for its zones: these two are ours.
LARGE, WIDE = 2.0, 1.5
ZONES = (
    Zone("safe", "the roofline is good, and eta carries over", (0.0, LARGE), (0.0, WIDE)),
    Zone("portable", "eta is large, but one number serves all GPUs", (LARGE, inf), (0.0, WIDE)),
    Zone("device-specific", "eta is small, but each GPU has its own", (0.0, LARGE), (WIDE, inf)),
    Zone("danger", "eta is large and each GPU's own: measure it there", (LARGE, inf), (WIDE, inf)),
)


@frozen
class RooflinePoint:
    """A kernel or collective of a step on one GPU, and its place under the roofline.

    `compute` and `memory` are the seconds that the FLOP and bytes of one run take at the GPU's peaks; both are 0 for a
    collective.  `dtype` is the number format of the FLOP.
    """

    span: KernelCost
    runs: int
    compute: float = 0.0
    memory: float = 0.0
    dtype: DType | None = None

    @property
    def seconds(self) -> float:
        """The seconds of all runs."""
        return self.runs * self.span.seconds

    @property
    def reached(self) -> float:
        """The share of the roof that is reached; 0 for a collective."""
        return max(self.compute, self.memory) / self.span.seconds

    @property
    def eta(self) -> float:
        """What the oracle says, which may know more than the data sheet, such as idle SMs; else time over roof.

        It is nan for a collective, which has no roof.
        """
        if not isnan(self.span.roofline_ratio) or not self.reached:
            return self.span.roofline_ratio
        return 1 / self.reached


@frozen
class FamilyEtas:
    """The kernels of one family in one step: their eta on each GPU, and their share of the step's time there.

    An eta is the geometric mean over the kernels, weighted by time.
    """

    step: str
    name: str
    etas: Mapping[str, float]
    shares: Mapping[str, float]

    @property
    def share(self) -> float:
        return sum(self.shares.values()) / len(self.shares)

    @property
    def eta(self) -> float:
        """The geometric mean of eta over the GPUs."""
        return exp(sum(map(log, self.etas.values())) / len(self.etas))

    @property
    def spread(self) -> float | None:
        """The largest eta over the smallest; None where there is only one GPU."""
        return max(self.etas.values()) / min(self.etas.values()) if len(self.etas) > 1 else None

    @property
    def zone(self) -> Zone | None:
        eta, spread = self.eta, self.spread
        if spread is None:
            return None
        return next(z for z in ZONES if z.eta[0] <= eta < z.eta[1] and z.spread[0] <= spread < z.spread[1])


@frozen
class Survey:
    """The families of each step, those with most time first, on `gpus`; `unpriced` says why a GPU is missing."""

    gpus: tuple[str, ...]
    families: tuple[FamilyEtas, ...]
    unpriced: Mapping[str, str]


def kernel_points(deployment: Deployment, batch: Batch) -> list[RooflinePoint]:
    """The distinct kernels and collectives that one rank of each pipeline stage runs for *batch*, in order."""
    merged: dict[tuple[Kernel | Collective, KernelCost], int] = {}
    for timer in deployment.timers():
        for kernel, cost, runs in timer.launches(batch):
            if cost.seconds or not cost.hidden:  # what is hidden takes no time
                merged[kernel, cost] = merged.get((kernel, cost), 0) + runs
    return [_point(kernel, cost, runs, deployment.gpu) for (kernel, cost), runs in merged.items()]


def survey(scenarios: Mapping[str, Scenario], batches: Mapping[str, Batch]) -> Survey:
    """Price each step of *batches* in each of *scenarios*, which are named by their GPUs."""
    priced: dict[str, dict[str, list[RooflinePoint]]] = {}
    unpriced: dict[str, str] = {}
    for gpu, scenario in scenarios.items():
        try:
            deployment = Deployment.of(scenario)
            priced[gpu] = {step: kernel_points(deployment, batch) for step, batch in batches.items()}
        except KsimError as error:
            unpriced[gpu] = str(error)
    families = [family for step in batches
                for family in _families(step, {gpu: steps[step] for gpu, steps in priced.items()})]
    return Survey(tuple(priced), tuple(families), unpriced)


def moved_to(scenario: Scenario, gpu: str) -> Scenario:
    """*scenario* on another GPU, in the usual system of that GPU."""
    return evolve(scenario, gpu=gpu, system=None, nodes=None)


def _point(kernel: Kernel | Collective, cost: KernelCost, runs: int, gpu: Gpu) -> RooflinePoint:
    if isinstance(kernel, Collective):
        return RooflinePoint(cost, runs)
    return RooflinePoint(cost, runs, *bounds(kernel, gpu), kernel.work.dtype)


def _families(step: str, points: Mapping[str, Sequence[RooflinePoint]]) -> list[FamilyEtas]:
    """The families among the *points* of one step, by GPU; a collective has no eta and is left out."""
    etas: dict[str, dict[str, float]] = {}
    shares: dict[str, dict[str, float]] = {}
    for gpu, kernels in points.items():
        total = sum(point.seconds for point in kernels)
        for name, members in _by_family(kernels):
            seconds = sum(point.seconds for point in members)
            mean = exp(sum(point.seconds * log(point.eta) for point in members) / seconds)
            etas.setdefault(name, {})[gpu], shares.setdefault(name, {})[gpu] = mean, seconds / total
    families = [FamilyEtas(step, name, etas[name], shares[name]) for name in etas]
    return sorted(families, key=lambda family: (-family.share, family.name))


def _by_family(points: Iterable[RooflinePoint]) -> Iterator[tuple[str, list[RooflinePoint]]]:
    groups: dict[str, list[RooflinePoint]] = {}
    for point in points:
        if not isnan(point.eta):
            groups.setdefault(point.span.family, []).append(point)
    yield from groups.items()
