"""Models say in numpy what they were fitted to say."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.calibration.regression import KINDS, Regressor
from ksim.oracles.efficiency.models import PAIRS, Interpolation
from tests.properties import examples

RANDOM = np.random.default_rng(7)
INPUTS = RANDOM.uniform(-2, 2, (600, 3))
TARGETS = 0.3 * INPUTS[:, 0] + 0.2 * np.sin(3 * INPUTS[:, 1]) - 0.5
PLAIN = np.full(len(INPUTS), 1.0)


def error(regressor: Regressor, targets: np.ndarray = TARGETS) -> float:
    half = len(INPUTS) // 2
    model = regressor.fit(INPUTS[:half], targets[:half], PLAIN[:half])
    return float(np.abs(model(INPUTS[half:]) - targets[half:]).mean())


def test_every_kind_beats_a_constant_on_what_it_can_say():
    assert error(Regressor("linear")) < 0.6 * error(Regressor("constant"))
    assert error(Regressor("network", {"members": 2})) < 0.5 * error(Regressor("constant"))
    assert error(Regressor("interpolation", {"base": Regressor("linear")})) < 0.1 * error(Regressor("constant"))


def test_a_line_is_found_whatever_a_few_outliers_say():
    targets = INPUTS @ [0.5, -0.25, 0.0] + 1.0
    targets[::40] += 3.0
    model: Any = Regressor("linear", {"ridge": 0.0}).fit(INPUTS, targets)
    assert model.slopes == pytest.approx([0.5, -0.25, 0.0], abs=1e-3)
    assert float(model.intercept) == pytest.approx(1.0, abs=1e-2)


def test_between_points_without_noise_the_process_passes_through_them_and_far_away_is_its_base():
    model: Any = Regressor("interpolation", {}).fit(INPUTS[:80], TARGETS[:80])
    assert model(INPUTS[:80]) == pytest.approx(TARGETS[:80], abs=1e-3)
    far = np.full((1, 3), 1e3)
    assert model(far) == pytest.approx(model.base(far))


@examples(10)
@given(st.sampled_from(["constant", "linear", "network", "interpolation"]),
       st.integers(1, PAIRS // 8), st.sampled_from("CF"))
def test_rows_are_priced_alike_alone_and_together(kind, count, order):
    """To the last bit, however the rows lie in memory."""
    model = FITTED.setdefault(kind, Regressor(kind, {"members": 2} if kind == "network" else {}).fit(INPUTS, TARGETS))
    rows = np.array(np.resize(INPUTS, (count, 3)), order=order)
    together = model(rows)
    assert together.shape == (count,)
    for i in {0, count // 2, count - 1}:
        assert model(rows[i : i + 1])[0] == together[i]


FITTED: dict = {}


def test_heavier_rows_count_more():
    weights = np.where(INPUTS[:, 0] > 0, 1.0, 1e-6)
    model: Any = Regressor("constant").fit(INPUTS, np.sign(INPUTS[:, 0]), weights)
    assert float(model.value) == 1.0


def test_kinds_are_all_reachable():
    assert {*KINDS} == {"nothing", "constant", "linear", "network", "interpolation", "layered_interpolation"}
    assert isinstance(Regressor("interpolation").fit(INPUTS[:50], TARGETS[:50]), Interpolation)
