"""Constants that made-up measurements were made with are found again, for the physics of every course."""

from itertools import product
from zlib import crc32

import numpy as np
import pytest
from attrs import asdict, evolve

from ksim.calibration.dataset import Worked
from ksim.calibration.fitting import OWN
from ksim.calibration.measurements import Batches, Measurements, Points, Source
from ksim.calibration.points import plan
from ksim.calibration.recipes import COURSES
from ksim.calibration.regression import Free, fit_constants
from tests.calibration.toys import FAMILY, H200, TRUTH, lesson

pytest.importorskip("scipy")
#: A GPU that is none.
TOY = evolve(H200, name="Toy", sms=100, bandwidth=3e12, clock=1.5e9)
BUDGET = 60.0
#: Points of a course, for the sake of time.
MOST = 150
#: Constants that the data of their family speaks of loudly, and how far off they may be found.
LOUD = {"gemm/bf16": ("memory", "tensor_bulk", "start_bulk"), "attention/bf16": ("start", "memory"),
        "grouped_gemm/bf16": ("start", "memory"), "rms_norm": ("start",), "copy": ("start", "memory")}


def points(course):
    """Those that a sweep would measure, as if they had been; of latent attention, which none does, some."""
    planned = latent() if course.measures == "mla" else next(
        part for part in plan(TOY, [course.measures], [], BUDGET).points if part.dtype == course.dtype)
    one = Measurements(**{**shallow(planned), "seconds": np.ones(len(planned)), "rows": np.arange(len(planned)),
                          "source": Source("made-up.csv", "sweep"), "gpu": "h200"})
    return one.take(np.sort(np.random.default_rng(0).permutation(len(one))[:MOST]))


def latent():
    counts, heads, lengths, new = np.array([*product((1, 8, 64), (16, 64, 128), (256, 2048, 16384), (1, 256))]).T
    return Points(family="mla", dtype="bf16", columns={"hq": heads, "tp": np.ones_like(heads)},
                  tags=np.where(new == 1, "decode", "prefill"), batches=Batches.uniform(counts, new, lengths))


def shallow(part):
    return asdict(part, recurse=False)


def known(course):
    """Constants away from the first guesses, by a factor of up to 1.3 and within their bounds."""
    random = np.random.default_rng(crc32(course.name.encode()))
    made = {}
    for name, free in course.free.items():
        made[name] = float(np.clip(free.guess * np.exp(random.uniform(-0.25, 0.25)), 1.05 * free.lowest,
                                   0.95 * free.highest))
    return made


@pytest.mark.parametrize("course", [course for course in COURSES if course.dtype == "bf16" or "/" not in course.name],
                         ids=lambda course: course.name)
def test_times_of_a_made_up_gpu_are_found_again(course):
    made = course.lesson(points(course), TOY)
    held = {**course.held, **course.swept}
    free = {name: each for name, each in course.free.items() if name not in held}
    truth = {**held, **{name: value for name, value in known(course).items() if name in free}}

    def times(constants):
        return Worked.out(made, course.family, constants).reference + made.others

    taught = evolve(made, seconds=times(truth))
    found = fit_constants(course.family, [taught.sample(OWN)], free, held)
    started = np.abs(times({**held, **{name: each.guess for name, each in free.items()}}) / taught.seconds - 1).mean()
    error = np.abs(times(found) / taught.seconds - 1).mean()
    assert error < 0.01 and error < started / 3
    assert {name: found[name] for name in held} == held
    for name in LOUD.get(course.name, ()):
        assert found[name] == pytest.approx(truth[name], rel=0.1), name
    for name, each in free.items():
        assert each.lowest - 1e-12 <= found[name] <= each.highest * (1 + 1e-9) or each.lowest == 0


def test_what_nothing_speaks_of_stays_at_its_guess():
    """Points of no size say nothing of the bandwidth."""
    free = {"start": Free(1e-7, 1e-6, 1e-5), "share": Free(0.1, 0.37, 1.0)}
    found = fit_constants(FAMILY, [lesson(np.full(20, 1.0))], free)
    assert found["share"] == pytest.approx(0.37, rel=1e-3) and found["start"] == pytest.approx(2e-6, rel=1e-2)


def test_wild_points_are_outvoted():
    """Least absolute errors: one point in five may be anything."""
    wild = np.where(np.arange(50) % 5 == 0, 1.5, 0.0)
    free = {"start": Free(1e-7, 1e-6, 1e-5), "share": Free(0.1, 0.5, 1.0)}
    found = fit_constants(FAMILY, [lesson(np.geomspace(1e4, 1e9, 50), noise=wild)], free)
    assert found == pytest.approx(TRUTH, rel=0.05)


@pytest.mark.parametrize("held", [{"share": 0.6}])
def test_what_is_held_is_not_fitted(held):
    found = fit_constants(FAMILY, [lesson(np.geomspace(1e4, 1e9, 30))], {"start": Free(1e-7, 1e-6, 1e-5)}, held)
    assert found["share"] == 0.6
