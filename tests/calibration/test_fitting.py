"""What is held out stays out, checks teach nothing, and architectures count alike."""

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.calibration.fitting import held_out, teach
from ksim.calibration.regression import NOTHING, Recipe, shares
from tests.calibration.toys import TRUTH, Memory, Witness, course, lesson, other
from tests.properties import examples

pytest.importorskip("scipy")
groups = st.lists(st.integers(0, 6), min_size=8, max_size=24).filter(lambda drawn: len({*drawn}) > 1)
quick = examples(12)


@quick
@given(groups)
def test_groups_are_never_split_over_folds(drawn):
    witness = Witness()
    toy = course(witness)
    _, seconds = held_out(toy, toy.sweep, lesson(np.linspace(1e6, 1e8, len(drawn)), drawn))
    assert np.isfinite(seconds).all()  # everyone is asked about
    assert all(not taught & asked for taught, asked in witness.seen)
    assert {*drawn} == set().union(*(asked for _, asked in witness.seen))
    assert len(witness.seen) == min(5, len({*drawn}))


@quick
@given(groups, st.integers(0, 2**32 - 1))
def test_a_model_that_memorises_gets_no_credit(drawn, seed):
    """Each size occurs several times in a group: whoever sees a copy knows the answer."""
    noise = np.random.default_rng(seed).normal(0, 0.5, len(drawn))
    points = lesson(1e7 * (1.0 + np.array(drawn)), drawn, noise)
    plain, memory = course(NOTHING), course(Memory())
    assert held_out(memory, memory.sweep, points)[1] == pytest.approx(held_out(plain, plain.sweep, points)[1])
    whole = teach(memory, memory.sweep, [points]).predict(points)
    assert len({*drawn}) < len(drawn) or whole == pytest.approx(points.seconds)


def test_checks_teach_nothing():
    checks = np.arange(30) % 3 == 0
    points = lesson(np.geomspace(1e5, 1e9, 30), np.arange(30) % 6, np.linspace(-0.2, 0.2, 30), checks)
    poisoned = evolve(points, seconds=np.where(checks, 1e3 * points.seconds, points.seconds))
    for recipe in (NOTHING, Recipe("linear"), Memory()):
        toy = course(recipe)
        one, two = (teach(toy, toy.sweep, [each]) for each in (points, poisoned))
        assert one.constants == two.constants and (one.predict(points) == two.predict(points)).all()
        kept, seconds = held_out(toy, toy.sweep, poisoned)
        assert len(kept) == 20 and (seconds == held_out(toy, toy.sweep, points)[1]).all()


def test_constants_are_found_again():
    toy = course()
    found = teach(toy, toy.sweep, [lesson(np.geomspace(1e4, 1e9, 40))]).constants
    assert found == pytest.approx(TRUTH, rel=0.02)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=8))
def test_architectures_count_alike(tables):
    """And so do the GPUs of each, and the tables of a GPU, however many rows they have."""
    lessons = [lesson(np.ones(rows), gpu=other(f"{architecture}{gpu}", architecture))
               for architecture, gpu, rows in tables]
    totals = {}
    for (architecture, gpu, rows), weights in zip(tables, shares(lessons), strict=True):
        assert len(weights) == rows and (weights == weights[0]).all()
        totals.setdefault(architecture, {}).setdefault(gpu, []).append(weights.sum())
    for of_gpus in totals.values():
        assert sum(map(sum, of_gpus.values())) == pytest.approx(1 / len(totals))
        for of_tables in of_gpus.values():
            assert of_tables == pytest.approx([1 / (len(totals) * len(of_gpus) * len(of_tables))] * len(of_tables))
