"""What is learned for GPUs of an architecture has seen none of it: twins do not teach each other."""

import attrs
import numpy as np
import pytest
from attrs import evolve

from ksim.calibration.fitting import NOTHING, Recipe
from ksim.calibration.learning import efficiencies, learn
from tests.calibration.toys import course, lesson, other

pytest.importorskip("scipy")
GPUS = (other("one", "old"), other("two", "new"), other("twin of two", "new"), other("three", "odd"))


def lessons(poison=""):
    """Of four GPUs, two of one architecture; times of the architecture called *poison* are made up."""
    made = [lesson(np.geomspace(1e5, 1e9, 25), noise=np.random.default_rng(i).normal(0.1 * i, 0.1, 25), gpu=gpu)
            for i, gpu in enumerate(GPUS)]
    return [evolve(each, seconds=(1 + 100 * np.arange(25)) * each.seconds) if each.gpu.architecture == poison else each
            for each in made]


def entries(taught, recipe=NOTHING):
    toy = course(recipe)
    return efficiencies(toy, taught, learn(toy, taught), "toys")


def numbers(part):
    """All arrays of an efficiency's parts."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in attrs.asdict(part, recurse=True).items()}


@pytest.mark.parametrize("recipe", [NOTHING, Recipe("linear")])
@pytest.mark.parametrize("left", ["old", "new", "odd"])
def test_poison_in_the_one_left_out_changes_nothing(left, recipe):
    clean, poisoned = (entries(lessons(poison), recipe)[f"toy without {left}"] for poison in ("", left))
    assert clean.constants == poisoned.constants and clean.rows == poisoned.rows
    for part in ("model", "region"):
        assert numbers(getattr(clean, part)) == numbers(getattr(poisoned, part))


@pytest.mark.parametrize("left", ["old", "new", "odd"])
def test_nor_in_its_intervals(left):
    clean, poisoned = (entries(lessons(poison))[f"toy without {left}"] for poison in ("", left))
    assert clean.error == poisoned.error and numbers(clean.spread) == numbers(poisoned.spread)


@pytest.mark.parametrize("left", ["old", "new"])
def test_poison_elsewhere_is_felt(left):
    clean, poisoned = (entries(lessons(poison))[f"toy without {left}"] for poison in ("", "odd"))
    assert clean.constants != poisoned.constants and clean.error < poisoned.error


def test_there_is_an_entry_for_each_architecture_and_one_for_new_ones():
    found = entries(lessons())
    assert [*found] == ["toy", "toy without new", "toy without odd", "toy without old"]
    assert found["toy"].rows == 100 and found["toy without new"].rows == 50


def test_a_single_architecture_teaches_strangers_with_doubled_errors():
    alone = [each for each in lessons() if each.gpu.architecture == "new"]
    (name, found), = entries(alone).items()
    assert name == "toy" and "doubled for others" in found.source
    toy = course()
    inside = learn(toy, alone).everything
    spread = np.concatenate([np.log(each.seconds / inside.predict(each)) for each in alone])
    low, high = found.spread.interval(inside.place(alone[0]), np.zeros(25))
    assert high.max() - low.min() > 1.5 * (np.quantile(spread, 0.95) - np.quantile(spread, 0.05))
