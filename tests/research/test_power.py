"""The power model: fitted to sustained kernels, predicted for those left out, extrapolated to other GPUs."""

from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.research.energy import prediction
from benchmarks.research.energy.prediction import bound, cooled, fit, joules_of, leave_group_out, predict, with_terms
from ksim.calibration import power as extrapolation
from ksim.compute.kernels.basic import Gemm
from ksim.foundation.catalog import entries
from ksim.foundation.errors import DataError
from ksim.foundation.units import DType
from ksim.scenario.hardware import gpu_of
from tests.calibration.samples import BOOST, COPY, H200, IDLE, KERNELS, row, rows, sweep
from tests.properties import examples

SWEEP = Path(__file__).parents[3] / "shared" / "data" / "h200" / "kernels_energy.parquet"
@examples(25)
@given(st.tuples(st.floats(1e-13, 1e-12), *[st.floats(5e-12, 5e-11)] * 3, st.floats(20, 300)))
def test_a_fit_recovers_the_joules_of_actions(planted):
    fitted = fit(rows(with_terms(H200, np.array(planted))), H200)
    assert joules_of(fitted) == pytest.approx(planted, rel=1e-4, abs=0)
    assert fitted.flop[DType.FP8] == pytest.approx(planted[0] / 2, rel=1e-4, abs=0)
    assert (fitted.idle, fitted.limit, fitted.link) == (H200.power.idle, H200.power.limit, H200.power.link)


def left_out(rows, gpu, group):
    return [predict(kernel, fitted) for kernel, fitted in zip(rows, leave_group_out(rows, gpu, group), strict=True)]


def test_a_family_has_no_influence_on_its_own_prediction():
    """Twice the joules of a family change the predictions of all other families, and not its own."""
    true = rows()
    false = [evolve(kernel, joules=2 * kernel.joules) if kernel.family == "copy" else kernel for kernel in true]
    before, after = (left_out(measured, H200, lambda kernel: kernel.family) for measured in (true, false))
    for of_true, of_false in zip(before, after, strict=True):
        assert (of_true.joules == of_false.joules) == (of_true.row.family == "copy")
    assert [prediction.row for prediction in after] == false


def test_kernels_that_obey_the_model_are_predicted_exactly():
    for made in left_out(rows(), H200, lambda kernel: (kernel.family, kernel.shape, kernel.clock)):
        if made.row.watts < H200.power.limit and made.row.clock == BOOST:
            assert abs(made.power_error) < 1e-3 and abs(made.time_error) < 1e-3 and abs(made.energy_error) < 1e-3


def test_no_kernel_is_predicted_beyond_the_power_limit():
    hot = row("gemm", Gemm(8192, 28672, 4096), 2.5e-3, BOOST)
    predicted = predict(hot, H200)
    assert hot.watts > H200.power.limit
    assert predicted.watts == H200.power.limit and predicted.seconds > cooled(hot, H200)
    assert predicted.joules / predicted.seconds == pytest.approx(H200.power.limit, rel=2e-3)


def test_the_time_of_a_graph_is_corrected_for_the_clock_that_the_kernel_before_left():
    busy, moving = (evolve(row(*KERNELS[place]), left=1.4e9) for place in (0, 8))
    assert bound(busy, H200) == "compute" and bound(moving, H200) == "memory"
    assert cooled(busy, H200) == pytest.approx(busy.graph / (1 + H200.power.clocks.share * (1.98 / 1.4 - 1)), abs=0)
    assert cooled(moving, H200) == moving.graph
    assert cooled(evolve(busy, left=np.inf), H200) == busy.graph
    assert predict(busy, H200, recovered=True).seconds > predict(busy, H200).seconds


def test_each_row_knows_the_clock_at_the_end_of_the_row_before(parquet):
    recorded = prediction.read(parquet(sweep(
        IDLE, {"family": "gemm", "m": 64, "n": 4096, "k": 4096, "dtype": "fp8", "sm_mhz": 1500.0},
        {**COPY, "sm_mhz": 1900.0}, {"family": "gemm", "m": 1, "n": 4096, "k": 4096}), "kernels_energy.parquet"))
    assert recorded.idle == 120.0
    assert {(kernel.family, kernel.dtype): kernel.left for kernel in recorded.rows} == {
        ("gemm", "fp8"): np.inf, ("copy", "bf16"): 1.5e9, ("gemm", "bf16"): 1.9e9}
    assert all(kernel.watts == pytest.approx(500.0) for kernel in recorded.rows)


@pytest.mark.parametrize("lines, problem", [
    ([{"family": "copy", "energy_mj_per_kernel": 1.0}], "has no column 'watts' and no 'latency_us'"),
    (sweep(COPY), "needs one row of family 'idle'"),
    (sweep(IDLE), "has no row but that of the idle GPU"),
    (sweep(IDLE, {"family": "softmax"}), "no family of kernels is called 'softmax'"),
    (sweep(IDLE, {"family": "gemm", "n": 8, "k": 8}), "has no column 'm', which gemm needs"),
    (sweep(IDLE, {**COPY, "graph_us": 0.0}), "row 1: graph_us is 0.0, and must be positive"),
])
def test_a_faulty_file_of_sustained_kernels_is_refused(parquet, lines, problem):
    with pytest.raises(DataError, match=problem):
        prediction.read(parquet(lines, "kernels_energy.parquet"))


@pytest.mark.parametrize("name", extrapolation.LIKENESSES)
def test_files_of_the_catalogue_have_the_extrapolated_power(name):
    there, rule = gpu_of(name).power, extrapolation.estimate(name)
    for cost in ("hbm", "write", "l2", "busy", "start"):
        assert getattr(there, cost) == pytest.approx(getattr(rule, cost), rel=1e-3, abs=0)
    assert there.flop == pytest.approx(rule.flop, rel=1e-3, abs=0)
    assert there.experts == pytest.approx(rule.experts, rel=1e-3, abs=0)


def test_every_gpu_is_measured_fitted_or_extrapolated():
    assert {*entries("gpus")} == {*extrapolation.LIKENESSES, *extrapolation.FITTED, extrapolation.MEASURED}
    assert {name for name in entries("gpus") if gpu_of(name).power.basis == "fitted"} == {*extrapolation.FITTED}


def test_the_file_of_the_measured_gpu_has_the_power_fitted_to_its_kernels():
    if not SWEEP.exists():
        pytest.skip(f"the sustained kernels are not at {SWEEP}")
    recorded = prediction.read(SWEEP)
    fitted = joules_of(fit(recorded.rows, H200))
    assert joules_of(H200.power) == pytest.approx(fitted, rel=2e-3, abs=0)
    assert recorded.idle == pytest.approx(H200.power.idle, rel=1e-3)
    unseen = left_out(recorded.rows, H200, lambda kernel: kernel.family)
    assert np.mean([abs(made.power_error) for made in unseen]) < 6
    assert np.mean([abs(made.time_error) for made in unseen]) < 5
    by_shape = left_out(recorded.rows, H200, lambda kernel: (kernel.dtype, kernel.shape))
    shapes = [abs(made.power_error) for made in by_shape]
    assert np.quantile(shapes, 0.9) == pytest.approx(100 * H200.power.reach, abs=1)
