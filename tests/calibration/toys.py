"""A toy family of kernels with one-line physics, and models that record or memorise what they are fitted to."""

import numpy as np
from attrs import evolve, field, frozen

from ksim.calibration.dataset import Dataset
from ksim.calibration.fitting import Candidate, FitSpec
from ksim.calibration.measurements import Measurements, Source, tagged
from ksim.calibration.regression import NOTHING, Free
from ksim.oracles.efficiency.families import Family
from ksim.oracles.efficiency.models import Physics
from ksim.scenario.hardware import gpu_of

H200 = gpu_of("h200")
FEATURES = ("log_size", "group")
TRUTH = {"start": 2e-6, "share": 0.8}


def physics(gpu, shapes, constants):
    """Seconds: a start, and a size over a share of the bandwidth."""
    bound = shapes["size"] / gpu.bandwidth
    seconds = constants["start"] + bound / constants["share"]
    nothing = np.zeros(len(bound))
    return Physics(seconds, nothing, bound, nothing, nothing, nothing.astype(np.intp),
                   np.column_stack([np.log(shapes["size"]), shapes["group"]]))


FAMILY = Family(physics, FEATURES, ("whole",), lambda kernels, gpu: {}, lambda kernel: ("toy",))


def spec(regressor=NOTHING, inputs=FEATURES):
    candidate = Candidate(regressor, inputs)
    return FitSpec(name="toy", family=FAMILY, measures="copy", dtype="bf16",
                   dataset=lambda rows, gpu: dataset(rows["bytes"]),
                   free={"start": Free(1e-7, 1e-6, 1e-5), "share": Free(0.2, 0.5, 1.0)}, learned=candidate,
                   table=candidate, sweep=candidate, place=("log_size",))


def dataset(sizes, groups=None, noise=None, checks=None, gpu=H200, truth=TRUTH):
    """A dataset of points of *sizes* bytes, off from `TRUTH` by factors of e to the power of *noise*."""
    sizes = np.asarray(sizes, dtype=float)
    groups = np.arange(len(sizes)) if groups is None else np.asarray(groups)
    shapes = {"size": sizes, "group": groups.astype(float)}
    seconds = physics(gpu, shapes, truth).seconds * np.exp(np.zeros(len(sizes)) if noise is None else noise)
    return Dataset(gpu, (shapes,), seconds, np.zeros(len(sizes)), groups,
                   np.zeros(len(sizes), dtype=bool) if checks is None else np.asarray(checks))


def gpu_like_h200(name, architecture):
    return evolve(H200, name=name, architecture=architecture)


@frozen
class Memory:
    """Memorises every row, and leaves other rows to the physics."""

    def fit(self, inputs, targets, weights=None):
        known = {tuple(row): target for row, target in zip(inputs.tolist(), targets.tolist(), strict=True)}
        return lambda rows: np.array([known.get(tuple(row), 0.0) for row in rows.tolist()])


@frozen
class Witness:
    """Records the groups that each model was fitted to, and those that it was asked about."""

    seen: list = field(factory=list)

    def fit(self, inputs, targets, weights=None):
        fitted, asked = {*inputs[:, 1].tolist()}, set()
        self.seen.append((fitted, asked))

        def model(rows):
            asked.update(rows[:, 1].tolist())
            return np.zeros(len(rows))

        return model


def measured(family, columns, seconds, tags=None, file="kernels_toy.csv", backend="sweep", **more):
    """Measurements on an H200."""
    count = len(seconds)
    return Measurements(family=family, dtype="bf16", columns={name: np.asarray(c) for name, c in columns.items()},
                        tags=tagged("grid", count) if tags is None else np.asarray(tags), seconds=np.asarray(seconds),
                        rows=np.arange(count), source=Source(file, backend, **more), gpu="h200")
