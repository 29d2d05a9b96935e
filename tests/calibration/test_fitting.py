"""Held-out groups and checks have no influence on a fit, and architectures have equal weights."""

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.calibration.fitting import fit, held_out
from ksim.calibration.regression import NOTHING, Regressor, shares
from tests.calibration.toys import Memory, Witness, dataset, gpu_like_h200, spec
from tests.properties import examples

pytest.importorskip("scipy")
groups = st.lists(st.integers(0, 6), min_size=8, max_size=24).filter(lambda drawn: len({*drawn}) > 1)
quick = examples(12)


@quick
@given(groups)
def test_groups_are_never_split_over_folds(drawn):
    witness = Witness()
    toy = spec(witness)
    _, seconds = held_out(toy, toy.sweep, dataset(np.linspace(1e6, 1e8, len(drawn)), drawn))
    assert np.isfinite(seconds).all()  # every point is predicted
    assert all(not fitted & asked for fitted, asked in witness.seen)
    assert {*drawn} == set().union(*(asked for _, asked in witness.seen))
    assert len(witness.seen) == min(5, len({*drawn}))


@quick
@given(groups, st.integers(0, 2**32 - 1))
def test_a_model_that_memorises_gets_no_credit(drawn, seed):
    """Each size occurs several times in a group, so a model that has seen a copy knows the answer."""
    noise = np.random.default_rng(seed).normal(0, 0.5, len(drawn))
    points = dataset(1e7 * (1.0 + np.array(drawn)), drawn, noise)
    plain, memory = spec(NOTHING), spec(Memory())
    assert held_out(memory, memory.sweep, points)[1] == pytest.approx(held_out(plain, plain.sweep, points)[1])
    whole = fit(memory, memory.sweep, [points]).predict(points)
    assert len({*drawn}) < len(drawn) or whole == pytest.approx(points.seconds)


def test_checks_have_no_influence_on_a_fit():
    checks = np.arange(30) % 3 == 0
    points = dataset(np.geomspace(1e5, 1e9, 30), np.arange(30) % 6, np.linspace(-0.2, 0.2, 30), checks)
    poisoned = evolve(points, seconds=np.where(checks, 1e3 * points.seconds, points.seconds))
    for regressor in (NOTHING, Regressor("linear"), Memory()):
        toy = spec(regressor)
        clean, spoilt = (fit(toy, toy.sweep, [made]) for made in (points, poisoned))
        assert clean.constants == spoilt.constants and (clean.predict(points) == spoilt.predict(points)).all()
        kept, seconds = held_out(toy, toy.sweep, poisoned)
        assert len(kept) == 20 and (seconds == held_out(toy, toy.sweep, points)[1]).all()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=8))
def test_architectures_have_equal_weights(tables):
    """And so do the GPUs of each, and the tables of a GPU, however many rows they have."""
    datasets = [dataset(np.ones(rows), gpu=gpu_like_h200(f"{architecture}{gpu}", architecture))
               for architecture, gpu, rows in tables]
    totals = {}
    for (architecture, gpu, rows), weights in zip(tables, shares(datasets), strict=True):
        assert len(weights) == rows and (weights == weights[0]).all()
        totals.setdefault(architecture, {}).setdefault(gpu, []).append(weights.sum())
    for of_gpus in totals.values():
        assert sum(map(sum, of_gpus.values())) == pytest.approx(1 / len(totals))
        for of_tables in of_gpus.values():
            assert of_tables == pytest.approx([1 / (len(totals) * len(of_gpus) * len(of_tables))] * len(of_tables))
