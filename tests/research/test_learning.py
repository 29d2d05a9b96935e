"""Efficiencies for an architecture are learned without it, so GPUs that share a die do not learn from each other."""

import attrs
import numpy as np
import pytest
from attrs import evolve

from benchmarks.research.learning import efficiencies, learn
from ksim.calibration.regression import NOTHING, Regressor
from tests.calibration.toys import dataset, gpu_like_h200, spec

pytest.importorskip("scipy")
GPUS = tuple(gpu_like_h200(name, architecture) for name, architecture in (
    ("one", "old"), ("two", "new"), ("twin of two", "new"), ("three", "odd")))


def datasets(poison=""):
    """Of four GPUs, two of one architecture; times of the architecture called *poison* are made up."""
    made = [dataset(np.geomspace(1e5, 1e9, 25), noise=np.random.default_rng(i).normal(0.1 * i, 0.1, 25), gpu=gpu)
            for i, gpu in enumerate(GPUS)]
    factors = 1 + 100 * np.arange(25)
    return [evolve(points, seconds=factors * points.seconds) if points.gpu.architecture == poison else points
            for points in made]


def entries(made, regressor=NOTHING):
    toy = spec(regressor)
    return efficiencies(toy, made, learn(toy, made), "toys")


def numbers(part):
    """All arrays of an efficiency's parts."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in attrs.asdict(part, recurse=True).items()}


@pytest.mark.parametrize("regressor", [NOTHING, Regressor("linear")])
@pytest.mark.parametrize("left", ["old", "new", "odd"])
def test_an_architecture_has_no_influence_on_the_efficiency_that_leaves_it_out(left, regressor):
    clean, poisoned = (entries(datasets(poison), regressor)[f"toy without {left}"] for poison in ("", left))
    assert clean.constants == poisoned.constants and clean.rows == poisoned.rows
    for part in ("model", "region"):
        assert numbers(getattr(clean, part)) == numbers(getattr(poisoned, part))


@pytest.mark.parametrize("left", ["old", "new", "odd"])
def test_an_architecture_has_no_influence_on_the_intervals_of_the_efficiency_that_leaves_it_out(left):
    clean, poisoned = (entries(datasets(poison))[f"toy without {left}"] for poison in ("", left))
    assert clean.error == poisoned.error and numbers(clean.spread) == numbers(poisoned.spread)


@pytest.mark.parametrize("left", ["old", "new"])
def test_an_architecture_influences_the_efficiencies_that_leave_others_out(left):
    clean, poisoned = (entries(datasets(poison))[f"toy without {left}"] for poison in ("", "odd"))
    assert clean.constants != poisoned.constants and clean.error < poisoned.error


def test_there_is_an_entry_for_each_architecture_and_one_for_new_ones():
    learned = entries(datasets())
    assert [*learned] == ["toy", "toy without new", "toy without odd", "toy without old"]
    assert learned["toy"].rows == 100 and learned["toy without new"].rows == 50


def test_intervals_from_a_single_architecture_are_doubled():
    alone = [points for points in datasets() if points.gpu.architecture == "new"]
    (name, learned), = entries(alone).items()
    assert name == "toy" and "doubled for others" in learned.source
    toy = spec()
    inside = learn(toy, alone).everything
    spread = np.concatenate([np.log(points.seconds / inside.predict(points)) for points in alone])
    low, high = learned.spread.interval(inside.place(alone[0]), np.zeros(25))
    assert high.max() - low.min() > 1.5 * (np.quantile(spread, 0.95) - np.quantile(spread, 0.05))
