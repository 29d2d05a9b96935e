"""The points of a sweep: enough, not too many, none twice, none that does not fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.calibration.checks import FEWEST
from ksim.calibration.grids import GRIDS
from ksim.calibration.measurements import CHECKS, FAMILIES
from ksim.calibration.runner.device import LAUNCHES
from ksim.calibration.sweep import BUDGET, LONGEST, MEMORY_SHARE, MOST_LAUNCHES, buffers, copies, cost, launches, plan
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.scenario.hardware import gpu_of
from ksim.scenario.models import model_of
from tests.properties import examples

H200 = gpu_of("h200")
SMALL = ["rms_norm", "argmax", "copy", "moe"]


def shapes(planned):
    return [(str(part), *shape) for part in planned.points
            for shape in zip(*(column.tolist() for column in part.shape()), strict=True)]


@pytest.mark.parametrize("name", ["a100-80g", "l4", "h200", "gb300"])
def test_a_sweep_fits_the_budget_and_memory_of_any_gpu(name):
    gpu = gpu_of(name)
    planned = plan(gpu)
    assert planned.seconds <= BUDGET
    known = shapes(planned)
    assert len(known) == len({*known}) and 2000 < len(known) < 8000
    for part in planned.points:
        sizes = buffers(part)
        assert all(size * copies(size, gpu.l2) <= MEMORY_SHARE * gpu.memory for size in sizes)
        assert {*part.tags} <= {"grid", "decode", "prefill", *CHECKS}
        assert all((part[column] > 0).all() for column in FAMILIES[part.family].needs)
    assert ("gemm fp8" in {str(part) for part in planned.points}) == ("fp8" in map(str, gpu.flops))
    rows = {name: (points, checks) for name, points, checks, _ in planned.families()}
    assert all(points >= FEWEST for points, _ in rows.values())
    assert all(checks > 0 for name, (_, checks) in rows.items() if name != "copy bf16")


def test_every_family_can_be_launched():
    assert {*GRIDS} == {*LAUNCHES} <= {*FAMILIES}


@examples(20)
@given(st.floats(2.0, 12.0), st.floats(2.0, 12.0))
def test_a_longer_budget_has_the_points_of_a_shorter_one(first, second):
    short, long = (plan(H200, SMALL, budget=budget) for budget in sorted((first, second)))
    assert short.seconds <= min(first, second) and {*shapes(short)} <= {*shapes(long)}


def test_a_thinned_grid_still_spans_its_range():
    full, thin = ({part.tags[0]: part for part in plan(H200, ["gemm"], budget=budget).points if part.dtype == "bf16"}
                  for budget in (300, 10))
    assert len(thin["grid"]) < len(full["grid"]) / 5
    for name in "mnk":
        assert (thin["grid"][name].min(), thin["grid"][name].max()) == (full["grid"][name].min(),
                                                                       full["grid"][name].max())


def test_the_layers_of_a_model_are_measured():
    planned = plan(H200, ["gemm", "moe", "attention", "argmax"], [model_of("qwen3-30b-a3b"), model_of("qwen3-8b")])
    parts = {(str(part), part.tags[0]): part for part in planned.points}
    products = {*zip(parts["gemm bf16", "grid"]["n"].tolist(), parts["gemm bf16", "grid"]["k"].tolist(), strict=True)}
    assert {(6144, 4096), (24576, 4096), (4096, 12288), (5120, 2048), (151936, 2048)} <= products
    assert {32} <= {*parts["attention bf16", "decode"]["hq"].tolist()}
    assert 128 in parts["moe bf16", "grid"]["e"]


def test_no_point_takes_too_long_on_a_small_gpu():
    assert max(seconds.max() for seconds in plan(gpu_of("l4")).costs) <= cost(LONGEST)


@given(st.floats(1e-7, 1.0))
def test_a_graph_holds_a_few_milliseconds_of_launches(seconds):
    assert 3 <= launches(seconds) <= MOST_LAUNCHES
    assert launches(seconds) * seconds <= max(3 * seconds, 2e-3 + seconds)


@given(st.floats(1, 1e11))
def test_rotating_buffers_exceed_the_l2_cache(size):
    assert copies(size, 50e6) * size >= 2 * 50e6 or copies(size, 50e6) == MOST_LAUNCHES


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"families": ["gem"]}, UnknownName, "no kernel family named 'gem'; did you mean 'gemm'"),
    ({"budget": 0.5}, ConfigError, r"--budget: 0.5 s is too short for 8 points of each family; give at least \d+ s"),
])
def test_an_impossible_plan_is_an_error(arguments, error, message):
    with pytest.raises(error, match=message):
        plan(H200, **arguments)


def test_ragged_and_mixed_batches_are_checks():
    for part in plan(H200, ["attention"]).points:
        uniform = np.diff(part.batches.starts) == 1
        assert uniform.all() if part.tags[0] in ("decode", "prefill") else not uniform.all()
