"""Profiles come back from their files as they were."""

import json

import numpy as np
import pytest

from ksim.calibration.regression import Regressor
from ksim.foundation.errors import DataError
from ksim.oracles.efficiency.models import Efficiency, Region, Spread
from ksim.oracles.efficiency.profiled import FORMAT, Profile, save

RANDOM = np.random.default_rng(3)
INPUTS = RANDOM.uniform(-1, 1, (200, 2))
TARGETS = INPUTS @ [0.3, -0.2] + 0.1 * np.sin(5 * INPUTS[:, 0])
RECIPES = {
    "constant": Regressor("constant"), "linear": Regressor("linear"),
    "network": Regressor("network", {"members": 2, "rounds": 5}),
    "between": Regressor("interpolation", {"base": Regressor("linear")}),
}


def efficiency(regressor: Regressor) -> Efficiency:
    model = regressor.fit(INPUTS, TARGETS)
    spread = Spread.of(TARGETS - model(INPUTS), INPUTS, column=1)
    return Efficiency({"start": 2e-6}, ("one", "two"), model, ("two", "one"), Region.around(INPUTS), spread,
                      len(INPUTS), 0.05, "a test")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "toy.npz"
    entries = {f"gemm/{name}": efficiency(recipe) for name, recipe in RECIPES.items()}
    save(path, "H200 SXM", "ksim calibrate sweep -o toy.npz", entries, note="made by hand")
    return path


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_model_loads_as_it_was(path, name):
    profile, saved = Profile.load(path), efficiency(RECIPES[name])
    assert profile.gpu == "H200 SXM"
    assert f"gemm/{name}" in profile
    found = profile[f"gemm/{name}"]
    assert (found.inputs, found.place, found.constants) == (("one", "two"), ("two", "one"), {"start": 2e-6})
    assert (found.rows, found.error, found.source) == (200, 0.05, "a test")
    # Files keep single precision.
    assert found.model(INPUTS) == pytest.approx(saved.model(INPUTS), abs=1e-4)
    assert not found.region.beyond(INPUTS).any()
    for ours, theirs in zip(found.spread.interval(INPUTS, np.zeros(200)),
                            saved.spread.interval(INPUTS, np.zeros(200)), strict=True):
        assert np.mean(np.abs(ours - theirs) < 1e-5) > 0.98


def test_a_profile_names_the_families_that_it_lacks(path):
    profile = Profile.load(path)
    assert "attention/bf16" not in profile
    assert [*profile] == [f"gemm/{name}" for name in RECIPES]


def test_a_profile_of_another_format_is_refused_with_the_command_that_rebuilds_it(path):
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["header"]))
    arrays["header"] = np.array(json.dumps({**header, "format": FORMAT + 1}))
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=f"has format {FORMAT + 1}, and this ksim reads format {FORMAT};"
                                        f" rebuild it with `ksim calibrate sweep -o toy.npz`"):
        Profile.load(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b'{"format": 1}'])
def test_a_file_that_is_no_profile_is_refused(tmp_path, content):
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"bad.npz: is no profile; `ksim gpu calibrate SWEEP -o bad.npz` makes one"):
        Profile.load(path)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match="gone.npz"):
        Profile.load(tmp_path / "gone.npz")


def test_an_archive_without_a_header_is_no_profile(tmp_path):
    np.savez(tmp_path / "other.npz", numbers=np.arange(3))
    with pytest.raises(DataError, match="is no profile"):
        Profile.load(tmp_path / "other.npz")
