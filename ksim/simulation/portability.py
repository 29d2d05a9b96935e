"""Does the roofline hold, and does what is left of it carry over to other GPUs?

``eta`` is a kernel's time over what the roofline allows.  A family of kernels
whose eta is small, and the same on every GPU, can be trusted on a GPU that
nobody has measured; one whose eta is large and each GPU's own cannot.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, inf, isnan, log

from attrs import evolve, frozen

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.flow.batch import Batch
from ksim.flow.kernels import KernelCost
from ksim.foundation.errors import KsimError
from ksim.foundation.units import DType
from ksim.oracles import bounds
from ksim.simulation.assembly import Site
from ksim.simulation.scenario import Scenario
from ksim.specs.hardware import Gpu


@frozen
class Zone:
    """A part of the map of families, from the first up to, but without, the second of each pair."""

    name: str
    means: str
    eta: tuple[float, float]
    spread: tuple[float, float]


#: From where on eta counts as large, and its largest over its smallest on several GPUs as wide.  The map follows
#: KernelSight-LM (arXiv 2606.28565, Fig. 11), which gives no numbers for its zones: these two are ours.
LARGE, WIDE = 2.0, 1.5
ZONES = (
    Zone("safe", "the roofline is good, and eta carries over", (0.0, LARGE), (0.0, WIDE)),
    Zone("portable", "eta is large, but one number serves all GPUs", (LARGE, inf), (0.0, WIDE)),
    Zone("device-specific", "eta is small, but each GPU has its own", (0.0, LARGE), (WIDE, inf)),
    Zone("danger", "eta is large and each GPU's own: measure it there", (LARGE, inf), (WIDE, inf)),
)


@frozen
class Point:
    """A kernel or collective of one step on one GPU: how often it runs there, and what the data sheet allows it.

    `compute` and `memory` are the seconds that one run's FLOP and bytes take at the GPU's peaks, both 0 for a
    collective; `dtype` is the format of the FLOP.
    """

    span: KernelCost
    runs: int
    compute: float = 0.0
    memory: float = 0.0
    dtype: DType | None = None

    @property
    def seconds(self) -> float:
        """Of all runs."""
        return self.runs * self.span.seconds

    @property
    def reached(self) -> float:
        """The share of the roof that it reaches; 0 for a collective."""
        return max(self.compute, self.memory) / self.span.seconds

    @property
    def eta(self) -> float:
        """As the oracle says, which may count what the data sheet cannot, such as idle SMs; else time over roof.

        nan for what has no roof.
        """
        if not isnan(self.span.roofline_ratio) or not self.reached:
            return self.span.roofline_ratio
        return 1 / self.reached


@frozen
class Family:
    """The kernels of one family in one step: by GPU, their eta, a geometric mean weighted by time, and their share
    of the step's time."""

    step: str
    name: str
    etas: Mapping[str, float]
    shares: Mapping[str, float]

    @property
    def share(self) -> float:
        return sum(self.shares.values()) / len(self.shares)

    @property
    def eta(self) -> float:
        """The geometric mean over the GPUs."""
        return exp(sum(map(log, self.etas.values())) / len(self.etas))

    @property
    def spread(self) -> float | None:
        """The largest eta over the smallest; None on one GPU alone, which says nothing of others."""
        return max(self.etas.values()) / min(self.etas.values()) if len(self.etas) > 1 else None

    @property
    def zone(self) -> Zone | None:
        eta, spread = self.eta, self.spread
        if spread is None:
            return None
        return next(z for z in ZONES if z.eta[0] <= eta < z.eta[1] and z.spread[0] <= spread < z.spread[1])


@frozen
class Survey:
    """Families on the GPUs that could be priced, by step and most time first, and why others could not be."""

    gpus: tuple[str, ...]
    families: tuple[Family, ...]
    unpriced: Mapping[str, str]


def points(site: Site, batch: Batch) -> list[Point]:
    """What one rank of each pipeline stage runs for *batch*, each distinct kernel once, in order."""
    merged: dict[tuple[Kernel | Collective, KernelCost], int] = {}
    for timer in site.timers():
        for kernel, cost, runs in timer.launches(batch):
            if not cost.hidden:  # what is hidden takes no time
                merged[kernel, cost] = merged.get((kernel, cost), 0) + runs
    return [_point(kernel, cost, runs, site.gpu) for (kernel, cost), runs in merged.items()]


def survey(scenarios: Mapping[str, Scenario], batches: Mapping[str, Batch]) -> Survey:
    """Price each step of *batches* in each of *scenarios*, which bear their GPU's name."""
    priced: dict[str, dict[str, list[Point]]] = {}
    unpriced: dict[str, str] = {}
    for gpu, scenario in scenarios.items():
        try:
            site = Site.of(scenario)
            priced[gpu] = {step: points(site, batch) for step, batch in batches.items()}
        except KsimError as error:
            unpriced[gpu] = str(error)
    families = [family for step in batches
                for family in _families(step, {gpu: steps[step] for gpu, steps in priced.items()})]
    return Survey(tuple(priced), tuple(families), unpriced)


def on(scenario: Scenario, gpu: str) -> Scenario:
    """*scenario* on another GPU, in the system that this one is usually in."""
    return evolve(scenario, gpu=gpu, system=None, nodes=None)


def _point(kernel: Kernel | Collective, cost: KernelCost, runs: int, gpu: Gpu) -> Point:
    if isinstance(kernel, Collective):
        return Point(cost, runs)
    return Point(cost, runs, *bounds(kernel, gpu), kernel.work.dtype)


def _families(step: str, found: Mapping[str, Sequence[Point]]) -> list[Family]:
    """The families of *found*, the points of one step by GPU; what has no roof has no eta and is left out."""
    etas: dict[str, dict[str, float]] = {}
    shares: dict[str, dict[str, float]] = {}
    for gpu, every in found.items():
        total = sum(point.seconds for point in every)
        for name, members in _by_family(every):
            seconds = sum(point.seconds for point in members)
            mean = exp(sum(point.seconds * log(point.eta) for point in members) / seconds)
            etas.setdefault(name, {})[gpu], shares.setdefault(name, {})[gpu] = mean, seconds / total
    families = [Family(step, name, etas[name], shares[name]) for name in etas]
    return sorted(families, key=lambda family: (-family.share, family.name))


def _by_family(every: Iterable[Point]) -> Iterator[tuple[str, list[Point]]]:
    groups: dict[str, list[Point]] = {}
    for point in every:
        if not isnan(point.eta):
            groups.setdefault(point.span.family, []).append(point)
    yield from groups.items()
