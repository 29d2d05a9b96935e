"""What actions cost: learned from sustained kernels, foretold for those left out, extrapolated to other GPUs."""

from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.calibration.power import extrapolation, sustained
from ksim.calibration.power.fitting import fit, joules_of, with_terms
from ksim.calibration.power.foretelling import bound, cooled, foretell, taught
from ksim.calibration.power.sustained import Sustained
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.cost.energy import joules
from ksim.foundation.catalog import entries
from ksim.foundation.errors import DataError
from ksim.foundation.units import DType
from ksim.simulation.hardware import gpu_of
from tests.properties import examples

H200 = gpu_of("h200")
SWEEP = Path(__file__).parents[3] / "shared" / "data" / "h200" / "kernels_energy.parquet"
BOOST = H200.power.clocks.boost
#: Kernels that tell all terms apart: bound by arithmetic, reading, writing, in the cache, and waiting; at two clocks.
KERNELS = [("gemm", Gemm(m, n, 4096), 2e-4, clock) for m, n in ((4096, 4096), (8192, 1024), (512, 8192), (16, 28672))
           for clock in (BOOST, 1.5e9)]
KERNELS += [("copy", Pointwise("copy", read, written, 0.0, 1), seconds, BOOST) for read, written, seconds in (
    (4e8, 0.0, 1e-4), (1e8, 4e8, 1.5e-4), (5e6, 5e6, 4e-6), (1e6, 2e6, 4e-5))]


def row(family, kernel, seconds, clock, power=H200.power):
    """A kernel that draws just what *power* says, its SMs at *clock*."""
    gpu = evolve(H200, power=power)
    made = Sustained(family, "bf16", str(kernel), (kernel,), seconds, seconds, 1.0, clock, BOOST)
    each = [joules(done, power) for done in made.actions(gpu)]
    energy = power.idle * seconds + sum(
        part.core * power.clocks.saved(clock) + part.busy * power.clocks.drawn(clock) + part.rest for part in each)
    return evolve(made, joules=energy)


def rows(power=H200.power):
    return [row(*kernel, power) for kernel in KERNELS]


@examples(25)
@given(st.tuples(st.floats(1e-13, 1e-12), *[st.floats(5e-12, 5e-11)] * 3, st.floats(20, 300)))
def test_a_fit_recovers_what_actions_cost(planted):
    found = fit(rows(with_terms(H200, np.array(planted))), H200)
    assert joules_of(found) == pytest.approx(planted, rel=1e-4, abs=0)
    assert found.flop[DType.FP8] == pytest.approx(planted[0] / 2, rel=1e-4, abs=0)
    assert (found.idle, found.limit, found.link) == (H200.power.idle, H200.power.limit, H200.power.link)


def left_out(rows, gpu, group):
    return [foretell(each, teacher) for each, teacher in zip(rows, taught(rows, gpu, group), strict=True)]


def test_what_is_left_out_teaches_nothing_about_itself():
    """Twice a family's joules are another truth for all others, and none for itself."""
    true = rows()
    false = [evolve(each, joules=2 * each.joules) if each.family == "copy" else each for each in true]
    before, after = (left_out(found, H200, lambda each: each.family) for found in (true, false))
    for one, other in zip(before, after, strict=True):
        assert (one.joules == other.joules) == (one.row.family == "copy")
    assert [each.row for each in after] == false


def test_what_the_model_made_is_foretold_exactly():
    for each in left_out(rows(), H200, lambda each: (each.family, each.shape, each.clock)):
        if each.row.watts < H200.power.limit and each.row.clock == BOOST:
            assert abs(each.power_error) < 1e-3 and abs(each.time_error) < 1e-3 and abs(each.energy_error) < 1e-3


def test_no_kernel_is_foretold_beyond_the_limit():
    hot = row("gemm", Gemm(8192, 28672, 4096), 2.5e-3, BOOST)
    found = foretell(hot, H200)
    assert hot.watts > H200.power.limit
    assert found.watts == H200.power.limit and found.seconds > cooled(hot, H200)
    assert found.joules / found.seconds == pytest.approx(H200.power.limit, rel=2e-3)


def test_a_graph_after_a_hot_kernel_ran_at_the_clock_that_this_had_left():
    busy, moving = (evolve(row(*KERNELS[place]), left=1.4e9) for place in (0, 8))
    assert bound(busy, H200) == "compute" and bound(moving, H200) == "memory"
    assert cooled(busy, H200) == pytest.approx(busy.graph / (1 + 0.5 * (1.98 / 1.4 - 1)), abs=0)
    assert cooled(moving, H200) == moving.graph
    assert cooled(evolve(busy, left=np.inf), H200) == busy.graph
    assert foretell(busy, H200, recovered=True).seconds > foretell(busy, H200).seconds


def sweep(*lines):
    """Rows of a sweep, each with the columns of all of them."""
    usual = {"watts": 500.0, "energy_mj_per_kernel": 50.0, "latency_us": 100.0, "graph_us": 95.0, "sm_mhz": 1980.0,
             "dtype": None}
    names = dict.fromkeys(name for line in lines for name in line)
    return [{**dict.fromkeys(names), **usual, **line} for line in lines]


IDLE = {"family": "idle", "watts": 120.0, "sm_mhz": None}
COPY = {"family": "copy", "bytes": 1 << 20}


def test_rows_follow_each_other_as_they_were_measured(parquet):
    recorded = sustained.read(parquet(sweep(
        IDLE, {"family": "gemm", "m": 64, "n": 4096, "k": 4096, "dtype": "fp8", "sm_mhz": 1500.0},
        {**COPY, "sm_mhz": 1900.0}, {"family": "gemm", "m": 1, "n": 4096, "k": 4096}), "kernels_energy.parquet"))
    assert recorded.idle == 120.0
    assert {(each.family, each.dtype): each.left for each in recorded.rows} == {
        ("gemm", "fp8"): np.inf, ("copy", "bf16"): 1.5e9, ("gemm", "bf16"): 1.9e9}
    assert all(each.watts == pytest.approx(500.0) for each in recorded.rows)


@pytest.mark.parametrize("lines, problem", [
    ([{"family": "copy", "energy_mj_per_kernel": 1.0}], "has no column 'watts' and no 'latency_us'"),
    (sweep(COPY), "needs one row of family 'idle'"),
    (sweep(IDLE), "has no row but that of the idle GPU"),
    (sweep(IDLE, {"family": "softmax"}), "no family of kernels is called 'softmax'"),
    (sweep(IDLE, {"family": "gemm", "n": 8, "k": 8}), "has no column 'm', which gemm needs"),
    (sweep(IDLE, {**COPY, "graph_us": 0.0}), "row 1: graph_us is 0.0, and must be positive"),
])
def test_mistakes_in_a_sweep_are_said(parquet, lines, problem):
    with pytest.raises(DataError, match=problem):
        sustained.read(parquet(lines, "kernels_energy.parquet"))


@pytest.mark.parametrize("name", extrapolation.LIKENESSES)
def test_files_have_what_the_rule_of_extrapolation_says(name):
    there, rule = gpu_of(name).power, extrapolation.estimate(name)
    for cost in ("hbm", "write", "l2", "busy", "start"):
        assert getattr(there, cost) == pytest.approx(getattr(rule, cost), rel=1e-3, abs=0)
    assert there.flop.keys() == rule.flop.keys()
    for dtype, cost in there.flop.items():
        assert cost == pytest.approx(rule.flop[dtype], rel=1e-3, abs=0)


def test_every_gpu_is_measured_or_extrapolated():
    assert {*entries("gpus")} == {*extrapolation.LIKENESSES, extrapolation.MEASURED}


def test_the_file_of_the_measured_gpu_has_what_its_kernels_teach():
    if not SWEEP.exists():
        pytest.skip(f"the sustained kernels are not at {SWEEP}")
    recorded = sustained.read(SWEEP)
    found = joules_of(fit(recorded.rows, H200))
    assert joules_of(H200.power) == pytest.approx(found, rel=2e-3, abs=0)
    assert recorded.idle == pytest.approx(H200.power.idle, rel=1e-3)
    unseen = left_out(recorded.rows, H200, lambda each: each.family)
    assert np.mean([abs(each.power_error) for each in unseen]) < 6
    assert np.mean([abs(each.time_error) for each in unseen]) < 5
    shapes = [abs(each.power_error) for each in left_out(recorded.rows, H200, lambda each: (each.dtype, each.shape))]
    assert np.quantile(shapes, 0.9) == pytest.approx(100 * H200.power.reach, abs=1)
