"""Fits recover the constants that made-up measurements were made with, for the physics of every family."""

from itertools import product
from zlib import crc32

import numpy as np
import pytest
from attrs import asdict, evolve

from ksim.calibration.batches import PointBatches
from ksim.calibration.dataset import PhysicsOfDataset
from ksim.calibration.fitting import SINGLE
from ksim.calibration.measurements import Measurements, Points, Source
from ksim.calibration.recipes import FIT_SPECS
from ksim.calibration.regression import Free, fit_constants
from ksim.calibration.sweep import plan
from tests.calibration.toys import FAMILY, H200, TRUTH, dataset

pytest.importorskip("scipy")
#: A GPU that does not exist.
TOY = evolve(H200, name="Toy", sms=100, bandwidth=3e12, clock=1.5e9)
BUDGET = 60.0
#: Points of a fit, to save time.
MOST = 150
#: Constants on which the data of their family depends strongly.
LOUD = {"gemm/bf16": ("memory", "tensor_bulk", "start_bulk"), "attention/bf16": ("start", "memory"),
        "grouped_gemm/bf16": ("start", "memory"), "rms_norm": ("start",), "copy": ("start", "memory")}


def points(spec):
    """Points that a sweep would measure, as measurements; of latent attention, which no sweep has, some points."""
    planned = latent() if spec.measures == "mla" else next(
        part for part in plan(TOY, [spec.measures], [], BUDGET).points if part.dtype == spec.dtype)
    measured = Measurements(**{**shallow(planned), "seconds": np.ones(len(planned)), "rows": np.arange(len(planned)),
                               "source": Source("made-up.csv", "sweep"), "gpu": "h200"})
    return measured.take(np.sort(np.random.default_rng(0).permutation(len(measured))[:MOST]))


def latent():
    counts, heads, lengths, new = np.array([*product((1, 8, 64), (16, 64, 128), (256, 2048, 16384), (1, 256))]).T
    return Points(family="mla", dtype="bf16", columns={"hq": heads, "tp": np.ones_like(heads)},
                  tags=np.where(new == 1, "decode", "prefill"), batches=PointBatches.uniform(counts, new, lengths))


def shallow(part):
    return asdict(part, recurse=False)


def known(spec):
    """Constants away from the first guesses, by a factor of up to 1.3 and within their bounds."""
    random = np.random.default_rng(crc32(spec.name.encode()))
    made = {}
    for name, free in spec.free.items():
        made[name] = float(np.clip(free.guess * np.exp(random.uniform(-0.25, 0.25)), 1.05 * free.lowest,
                                   0.95 * free.highest))
    return made


@pytest.mark.parametrize("spec", [spec for spec in FIT_SPECS if spec.dtype == "bf16" or "/" not in spec.name],
                         ids=lambda spec: spec.name)
def test_a_fit_recovers_the_constants_of_a_made_up_gpu(spec):
    made = spec.dataset(points(spec), TOY)
    held = {**spec.held, **spec.held_in_sweeps}
    free = {name: constant for name, constant in spec.free.items() if name not in held}
    truth = {**held, **{name: value for name, value in known(spec).items() if name in free}}

    def times(constants):
        return PhysicsOfDataset.of(made, spec.family, constants).reference + made.other_seconds

    measured = evolve(made, seconds=times(truth))
    fitted = fit_constants(spec.family, [measured.sample(SINGLE)], free, held)
    guess = {**held, **{name: constant.guess for name, constant in free.items()}}
    error_of_guess = np.abs(times(guess) / measured.seconds - 1).mean()
    error = np.abs(times(fitted) / measured.seconds - 1).mean()
    assert error < 0.01 and error < error_of_guess / 3
    assert {name: fitted[name] for name in held} == held
    for name in LOUD.get(spec.name, ()):
        assert fitted[name] == pytest.approx(truth[name], rel=0.1), name
    for name, constant in free.items():
        assert constant.lowest - 1e-12 <= fitted[name] <= constant.highest * (1 + 1e-9) or constant.lowest == 0


def test_a_constant_without_data_stays_at_its_guess():
    """Points of no size do not depend on the bandwidth."""
    free = {"start": Free(1e-7, 1e-6, 1e-5), "share": Free(0.1, 0.37, 1.0)}
    fitted = fit_constants(FAMILY, [dataset(np.full(20, 1.0))], free)
    assert fitted["share"] == pytest.approx(0.37, rel=1e-3) and fitted["start"] == pytest.approx(2e-6, rel=1e-2)


def test_outliers_do_not_move_the_constants():
    """With least absolute errors, one point in five may be anything."""
    wild = np.where(np.arange(50) % 5 == 0, 1.5, 0.0)
    free = {"start": Free(1e-7, 1e-6, 1e-5), "share": Free(0.1, 0.5, 1.0)}
    fitted = fit_constants(FAMILY, [dataset(np.geomspace(1e4, 1e9, 50), noise=wild)], free)
    assert fitted == pytest.approx(TRUTH, rel=0.05)


@pytest.mark.parametrize("held", [{"share": 0.6}])
def test_a_held_constant_is_not_fitted(held):
    fitted = fit_constants(FAMILY, [dataset(np.geomspace(1e4, 1e9, 30))], {"start": Free(1e-7, 1e-6, 1e-5)}, held)
    assert fitted["share"] == 0.6
