"""Fit specs: which rows of a family of kernels are fitted, what is fitted to them, and how far off the fit is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ksim.calibration.dataset import Dataset, Mask, PhysicsOfDataset, RowRule
from ksim.calibration.measurements import Measurements
from ksim.calibration.regression import Free, Regressor, fit_constants, shares
from ksim.oracles.efficiency.families import Constants, Family
from ksim.oracles.efficiency.families import family as family_called
from ksim.oracles.efficiency.models import Array, Efficiency, EfficiencyModel, Region, Spread
from ksim.specs.hardware import Gpu

#: Folds of cross-validation.
FOLDS = 5
#: Intervals are wider by this factor than the errors at held-out groups of a grid: kernels of models lie off the grid.
OFF_GRID = 1.25
#: The most points of a table that constants are fitted to, if several GPUs share them, and if they are of one GPU.
SHARED, SINGLE = 600, 2000
#: The most points of a table that a model on top of the constants is fitted to.
MODELLED = 8000


@frozen
class Candidate:
    """A model on top of the physics, and the inputs that it takes."""

    regressor: Regressor
    inputs: tuple[str, ...] = ()


@frozen(kw_only=True)
class FitSpec:
    """How the efficiency `name`, such as ``gemm/bf16``, is fitted to measurements of the family `measures` in `dtype`.

    The `free` constants of the physics are fitted first, then a model of the
    remaining errors: `learned` if the target GPU is not among the datasets; if
    all datasets are of it, `table` or `sweep`, depending on their source.
    Constants in `held` are not fitted, unless they are in `single_gpu` and all
    datasets are of one GPU.  A sweep also holds those in `held_in_sweeps`.

    `dataset` makes columns of measurements.  `rules` leave rows out everywhere;
    of the others only `core` rows are fitted.  `grid` marks the few rows of a
    table that a sweep would measure.  `place` names the inputs that tell how far
    a kernel lies from the datasets; intervals differ along the first of them.
    `like` names the efficiencies that price these kernels if this one is missing.
    """

    name: str
    family: Family
    measures: str
    dtype: str
    dataset: Callable[[Measurements, Gpu], Dataset]
    free: Mapping[str, Free]
    learned: Candidate
    table: Candidate
    sweep: Candidate
    place: tuple[str, ...]
    rules: Sequence[RowRule] = ()
    core: RowRule | None = None
    grid: Callable[[Measurements], Mask] | None = None
    like: tuple[str, ...] = ()
    held: Constants = field(factory=dict)
    single_gpu: Mapping[str, Free] = field(factory=dict)
    held_in_sweeps: Constants = field(factory=dict)

    @classmethod
    def of(cls, name: str, family: str, **rest: Any) -> "FitSpec":
        return cls(name=name, family=family_called(family), **rest)

    def takes(self, rows: Measurements) -> bool:
        return (rows.family, rows.dtype) == (self.measures, self.dtype)


@frozen(eq=False)
class Fitted:
    """The result of a fit: constants of the physics, and the model on top of them."""

    spec: FitSpec
    candidate: Candidate
    constants: Mapping[str, float]
    model: EfficiencyModel

    def predict(self, dataset: Dataset) -> Array:
        """Predict the seconds of each point."""
        return self._physics(dataset).predict(self.model, self.candidate.inputs)

    def place(self, dataset: Dataset) -> Array:
        """Return the inputs that tell how far each point lies from the data."""
        return self._physics(dataset).inputs(self.spec.place)

    def _physics(self, dataset: Dataset) -> PhysicsOfDataset:
        return PhysicsOfDataset.of(dataset, self.spec.family, self.constants)


def fit(spec: FitSpec, candidate: Candidate, datasets: Sequence[Dataset], swept: bool = False) -> Fitted:
    """Fit to all of *datasets* but their checks."""
    several = len({dataset.gpu.name for dataset in datasets}) > 1
    usable = [dataset.take(~dataset.checks) for dataset in datasets]
    sampled = [dataset.sample(SHARED if several else SINGLE) for dataset in usable]
    held = {**spec.held, **(spec.held_in_sweeps if swept else {})}
    free = {name: constant for name, constant in spec.free.items() if name not in held}
    if not several:
        free.update(spec.single_gpu)
    constants = fit_constants(spec.family, sampled, free, held)
    modelled = sampled if several else [dataset.sample(MODELLED) for dataset in usable]
    physics = [PhysicsOfDataset.of(dataset, spec.family, constants) for dataset in modelled]
    inputs = np.concatenate([part.inputs(candidate.inputs) for part in physics])
    targets = np.concatenate([part.targets for part in physics])
    model = candidate.regressor.fit(inputs, targets, np.concatenate(shares(modelled)))
    return Fitted(spec, candidate, constants, model)


def held_out(spec: FitSpec, candidate: Candidate, dataset: Dataset, swept: bool = False,
             folds: int = FOLDS) -> tuple[Dataset, Array]:
    """Return the points that are no checks, and the seconds that a fit to other groups of them predicts for each."""
    dataset = dataset.take(~dataset.checks)
    seconds = np.full(len(dataset), np.nan)
    for out in _folds(dataset.groups, folds):
        seconds[out] = fit(spec, candidate, [dataset.take(~out)], swept).predict(dataset.take(out))
    return dataset, seconds


def _folds(groups: NDArray[np.int64], folds: int) -> Iterator[Mask]:
    """Yield masks of the points held out: whole groups, dealt into *folds* of about the same number of points."""
    names, counts = np.unique(groups, return_counts=True)
    sizes = np.zeros(min(folds, len(names)), dtype=np.int64)
    fold_of: dict[int, int] = {}
    for largest in np.argsort(-counts, kind="stable"):
        smallest = int(sizes.argmin())
        fold_of[int(names[largest])] = smallest
        sizes[smallest] += counts[largest]
    fold_of_point = np.array([fold_of[int(group)] for group in groups])
    for fold in range(len(sizes)):
        yield fold_of_point == fold


def efficiency(fitted: Fitted, datasets: Sequence[Dataset], missed: Sequence[Array], source: str,
               widening: float = 1.0) -> Efficiency:
    """Return what a profile keeps of a fit.

    *missed* has, for each dataset, log(measured / predicted) of held-out points;
    the intervals are those errors times *widening*.
    """
    place = np.concatenate([fitted.place(dataset) for dataset in datasets])
    residuals, weights = np.concatenate(missed), np.concatenate(shares(datasets))
    spread = Spread.of(widening * residuals, place, column=0, weights=weights)
    error = float(np.average(np.abs(np.exp(-residuals) - 1), weights=weights))
    return Efficiency(
        constants=fitted.constants, inputs=fitted.candidate.inputs, model=fitted.model, place=fitted.spec.place,
        region=Region.around(place), spread=spread, rows=len(residuals), error=error, source=source)


@frozen(eq=False)
class CrossValidated:
    """A fit to a GPU's own dataset, and the seconds that fits to other groups predict for the points `kept`."""

    fitted: Fitted
    kept: Dataset
    seconds: Array
    efficiency: Efficiency


def cross_validate(spec: FitSpec, dataset: Dataset, swept: bool, source: str = "",
                   folds: int = FOLDS) -> CrossValidated:
    """Fit to a GPU's own points, and estimate the error by holding groups of them out."""
    candidate = spec.sweep if swept else spec.table
    fitted = fit(spec, candidate, [dataset], swept)
    kept, seconds = held_out(spec, candidate, dataset, swept, folds)
    missed = np.log(kept.seconds / seconds)
    priced = efficiency(fitted, [kept], [missed], source, OFF_GRID if swept else 1.0)
    return CrossValidated(fitted, kept, seconds, priced)


@frozen
class LeftOut:
    """A number of rows that were left out for one reason."""

    reason: str
    rows: int


@frozen(eq=False)
class Selected:
    """A GPU's rows as datasets: those to fit (`core`), those that only test how far a fit carries, and the number left.

    `rows` are the measurements of the core.
    """

    gpu: Gpu
    rows: tuple[Measurements, ...]
    core: tuple[Dataset, ...]
    outside_core: tuple[Dataset, ...]
    left: tuple[LeftOut, ...] = field(factory=tuple)


def select(spec: FitSpec, rows: Sequence[Measurements], gpu: Gpu) -> Selected:
    """Apply the rules of *spec* to a GPU's *rows*."""
    left: dict[str, int] = {}
    core, outside_core, kept = [], [], []
    for table in rows:
        usable = _kept(spec, table, left)
        is_core = spec.core.holds(usable) if spec.core else np.ones(len(usable), dtype=np.bool_)
        if is_core.any():
            kept.append(usable.take(is_core))
            core.append(spec.dataset(kept[-1], gpu))
        if not is_core.all():
            outside_core.append(spec.dataset(usable.take(~is_core), gpu))
    return Selected(gpu, tuple(kept), tuple(core), tuple(outside_core),
                    tuple(LeftOut(reason, count) for reason, count in left.items()))


def _kept(spec: FitSpec, table: Measurements, left: dict[str, int]) -> Measurements:
    for rule in spec.rules:
        out = rule.holds(table)
        if out.any():
            left[rule.reason] = left.get(rule.reason, 0) + int(out.sum())
            table = table.take(~out)
    return table


def by_gpu(rows: Sequence[Measurements]) -> Iterator[tuple[str, list[Measurements]]]:
    """Yield each GPU of the catalogue with its measurements."""
    for name in sorted({part.gpu for part in rows if part.gpu}):
        yield name, [part for part in rows if part.gpu == name]
