"""Models say in numpy what they were fitted to say."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.calibration.fitting import KINDS, Recipe
from ksim.oracles.efficiency.models import CHUNK, BoundedHead, Constant, Interpolation
from tests.properties import examples

RANDOM = np.random.default_rng(7)
INPUTS = RANDOM.uniform(-2, 2, (600, 3))
TARGETS = 0.3 * INPUTS[:, 0] + 0.2 * np.sin(3 * INPUTS[:, 1]) - 0.5
PLAIN = np.full(len(INPUTS), 1.0)


def error(recipe: Recipe, targets: np.ndarray = TARGETS) -> float:
    half = len(INPUTS) // 2
    model = recipe.fit(INPUTS[:half], targets[:half], PLAIN[:half])
    return float(np.abs(model(INPUTS[half:]) - targets[half:]).mean())


def test_every_kind_beats_a_constant_on_what_it_can_say():
    assert error(Recipe("linear")) < 0.6 * error(Recipe("constant"))
    assert error(Recipe("trees")) < 0.5 * error(Recipe("constant"))
    assert error(Recipe("network", {"members": 2})) < 0.5 * error(Recipe("constant"))
    assert error(Recipe("interpolation", {"base": Recipe("linear")})) < 0.1 * error(Recipe("constant"))


def test_a_line_is_found_whatever_a_few_outliers_say():
    targets = INPUTS @ [0.5, -0.25, 0.0] + 1.0
    targets[::40] += 3.0
    model: Any = Recipe("linear", {"ridge": 0.0}).fit(INPUTS, targets)
    assert model.slopes == pytest.approx([0.5, -0.25, 0.0], abs=1e-3)
    assert float(model.intercept) == pytest.approx(1.0, abs=1e-2)


def test_a_bounded_head_finds_the_utilisation_that_made_the_data():
    waves = RANDOM.uniform(0, 4, (500, 1))
    made = BoundedHead(np.array([0.0, 1.0]), np.array([0.0, -1.0]), 0.0, 0.01)
    found = Recipe("bounded_head").fit(waves, made(waves))
    assert found(waves) == pytest.approx(made(waves), abs=0.02)


@given(st.lists(st.floats(-30, 30), min_size=4, max_size=4), st.floats(-5, 8))
def test_a_bounded_head_is_never_above_its_bounds(weights, waves):
    gains, losses = np.array(weights[:2]), np.array(weights[2:])
    (log_eta,) = BoundedHead(gains, losses, 0.0, 0.01)(np.array([[waves]]))
    assert -1e-9 <= log_eta <= -np.log(0.01) + 1e-9


def test_trees_and_networks_are_those_of_the_library():
    sklearn = pytest.importorskip("sklearn.ensemble")
    options = {"loss": "huber", "n_estimators": 60, "max_leaf_nodes": 12, "max_depth": None, "learning_rate": 0.12,
               "min_samples_leaf": 20, "subsample": 0.5, "random_state": 0}
    theirs = sklearn.GradientBoostingRegressor(**options).fit(INPUTS, TARGETS, PLAIN)
    # Thresholds are kept in double precision here, and inputs were rounded to single by the library.
    inputs = INPUTS.astype(np.float32).astype(float)
    assert Recipe("trees").fit(INPUTS, TARGETS)(inputs) == pytest.approx(theirs.predict(inputs), abs=1e-6)


def test_between_points_without_noise_the_process_passes_through_them_and_far_away_is_its_base():
    model: Any = Recipe("interpolation", {}).fit(INPUTS[:80], TARGETS[:80])
    assert model(INPUTS[:80]) == pytest.approx(TARGETS[:80], abs=1e-3)
    far = np.full((1, 3), 1e3)
    assert model(far) == pytest.approx(model.base(far))


@examples(10)
@given(st.sampled_from(["constant", "linear", "bounded_head", "trees", "network", "interpolation"]),
       st.integers(1, 2 * CHUNK + 3), st.sampled_from("CF"))
def test_rows_are_priced_alike_alone_and_together(kind, count, order):
    """To the last bit, however the rows lie in memory."""
    model = FITTED.setdefault(kind, Recipe(kind, {"members": 2} if kind == "network" else {}).fit(INPUTS, TARGETS))
    rows = np.array(np.resize(INPUTS, (count, 3)), order=order)
    together = model(rows)
    assert together.shape == (count,)
    for i in {0, count // 2, count - 1}:
        assert model(rows[i : i + 1])[0] == together[i]


FITTED: dict = {}


def test_heavier_rows_count_more():
    weights = np.where(INPUTS[:, 0] > 0, 1.0, 1e-6)
    model: Any = Recipe("constant").fit(INPUTS, np.sign(INPUTS[:, 0]), weights)
    assert float(model.value) == 1.0


def test_kinds_are_all_reachable():
    assert {*KINDS} == {"nothing", "constant", "linear", "bounded_head", "trees", "network", "interpolation",
                        "layered_interpolation", "mean"}
    both: Any = Recipe("mean", {"one": Recipe("constant"), "other": Recipe("linear")}).fit(INPUTS, TARGETS)
    assert isinstance(both.one, Constant)
    assert both(INPUTS) == pytest.approx((both.one(INPUTS) + both.other(INPUTS)) / 2)
    assert isinstance(Recipe("interpolation").fit(INPUTS[:50], TARGETS[:50]), Interpolation)
