"""Datasets: measured rows as the columns that a family's physics takes, and rules by which rows are left out.

Names of GPUs and number formats in tables and drivers, and ksim's names for them.
"""

from collections.abc import Callable, Sequence

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ksim.calibration.measurements import CHECKS, SWEEP, Measurements
from ksim.oracles.efficiency.families import Constants, Family, Shapes
from ksim.oracles.efficiency.models import Array, EfficiencyModel, Physics, inputs_of
from ksim.specs.hardware import Gpu

Mask = NDArray[np.bool_]


@frozen(eq=False)
class Dataset:
    """Measured points of one family on one `gpu`.

    A point runs one kernel of each of `parts` in turn; a part has one column
    entry per point.  `other_seconds` is the time of kernels that were timed along
    with them and are priced elsewhere.  `groups` numbers the points that say much
    the same, so that they are held out together.  `checks` marks the points that
    no fit may use.
    """

    gpu: Gpu
    parts: tuple[Shapes, ...]
    seconds: Array
    other_seconds: Array
    groups: NDArray[np.int64]
    checks: Mask

    @classmethod
    def of(cls, rows: Measurements, gpu: Gpu, *parts: Shapes, groups: NDArray[np.int64],
           other_seconds: Array | None = None, checks: tuple[str, ...] = CHECKS) -> "Dataset":
        """Make the dataset of *rows* as *parts*; rows tagged with one of *checks* are checks."""
        others = np.zeros(len(rows)) if other_seconds is None else other_seconds
        return cls(gpu, parts, rows.seconds, others, groups, np.isin(rows.tags, checks))

    def __len__(self) -> int:
        return len(self.seconds)

    def sample(self, most: int) -> "Dataset":
        """Return at most *most* points, drawn evenly."""
        if len(self) <= most:
            return self
        return self.take(np.sort(np.random.default_rng(0).choice(len(self), most, replace=False)))

    def divisible(self) -> "Dataset":
        """Return this dataset; if all points to fit are of one group, each point becomes a group of its own."""
        if len(np.unique(self.groups[~self.checks])) > 1:
            return self
        return evolve(self, groups=np.arange(len(self)))

    def take(self, points: Mask | NDArray[np.intp]) -> "Dataset":
        parts = tuple({name: column[points] for name, column in part.items()} for part in self.parts)
        return Dataset(self.gpu, parts, self.seconds[points], self.other_seconds[points], self.groups[points],
                       self.checks[points])


def join(datasets: Sequence[Dataset]) -> Dataset:
    """Join the datasets of one GPU; groups of different datasets stay apart."""
    if len(datasets) == 1:
        return datasets[0]
    parts = tuple({name: np.concatenate([dataset.parts[i][name] for dataset in datasets]) for name in part}
                  for i, part in enumerate(datasets[0].parts))
    before = np.cumsum([0, *(dataset.groups.max(initial=-1) + 1 for dataset in datasets)])
    groups = [dataset.groups + start for dataset, start in zip(datasets, before[:-1], strict=True)]
    return Dataset(datasets[0].gpu, parts, np.concatenate([dataset.seconds for dataset in datasets]),
                   np.concatenate([dataset.other_seconds for dataset in datasets]), np.concatenate(groups),
                   np.concatenate([dataset.checks for dataset in datasets]))


@frozen(eq=False)
class PhysicsOfDataset:
    """The physics of a dataset's kernels, evaluated with some constants."""

    dataset: Dataset
    family: Family
    physics: tuple[Physics, ...]

    @classmethod
    def of(cls, dataset: Dataset, family: Family, constants: Constants) -> "PhysicsOfDataset":
        return cls(dataset, family, tuple(family.physics(dataset.gpu, part, constants) for part in dataset.parts))

    @property
    def reference(self) -> Array:
        """Seconds of all parts by physics alone."""
        return np.asarray(np.sum([part.seconds for part in self.physics], axis=0))

    @property
    def targets(self) -> Array:
        """The log efficiency with which each point takes as long as measured.

        The other kernels may be priced above the measured total, so at least a tenth of it is taken to be the parts'.
        """
        in_parts = np.maximum(self.dataset.seconds - self.dataset.other_seconds, 0.1 * self.dataset.seconds)
        targets: Array = np.log(in_parts / self.reference)
        return targets

    def inputs(self, names: tuple[str, ...]) -> Array:
        """The inputs of the first part; features are chosen so that parts that share a model have the same inputs."""
        return inputs_of(names, self.physics[0], self.family.features, self.dataset.parts[0])

    def predict(self, model: EfficiencyModel, names: tuple[str, ...]) -> Array:
        """Predict the seconds of each point."""
        in_parts = self.reference * np.exp(model(self.inputs(names)))
        seconds: Array = in_parts + self.dataset.other_seconds
        return seconds


@frozen
class RowRule:
    """A rule about rows of measurements: it is about the rows for which `holds` is true, for the `reason` given."""

    reason: str
    holds: Callable[[Measurements], Mask]


def in_tables(rows: Measurements) -> Mask:
    """Mark all rows if they come from a public table, which names a serving engine, and none if from a sweep."""
    return np.full(len(rows), not rows.source.swept)


def other_engines(reason: str) -> RowRule:
    """Return a rule about rows of tables that another engine than vLLM measured."""
    return RowRule(reason, lambda rows: np.full(len(rows), rows.source.backend not in (SWEEP, "vllm")))


def group_by(rows: Measurements, *columns: str) -> NDArray[np.int64]:
    """Number the rows by their values in *columns*."""
    values = np.stack([rows[name] for name in columns], axis=1)
    numbers: NDArray[np.int64] = np.unique(values, axis=0, return_inverse=True)[1].ravel()
    return numbers


