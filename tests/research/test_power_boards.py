"""Public tables with the power of boards: counts of actions, rows that are held out, what a meter shows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.research.energy import boards
from benchmarks.research.energy.boards import Readings, metered_watts, model_watts
from ksim.calibration.regression import weighted_median
from ksim.foundation.errors import DataError
from ksim.scenario.hardware import gpu_of
from tests.calibration.samples import attention, gemm, line

POWER = gpu_of("h200").power
@pytest.fixture
def table(parquet):
    return lambda *rows: parquet(list(rows), "power.parquet")


def counted(path):
    """Return the counts of the only row of a table: flops, hbm, written, l2, busy."""
    (reading,) = boards.read(path)
    (row,) = reading.counts
    return dict(zip(("flops", "hbm", "written", "l2", "busy"), row, strict=True))


def test_gemms_rotate_through_six_layers_of_weights(table):
    """33.5 MB stay in 50 MiB of L2, and six times as much do not; weights in blocks of FP8 have no others beside."""
    small, large = counted(table(gemm(n=1024, k=2048))), counted(table(gemm()))
    assert small["hbm"] == small["written"] == 0 and small["l2"] > 2 * 1024 * 2048
    assert large["hbm"] == large["l2"] == 2 * (4096 * 4096 + 2 * 16 * 4096) and large["flops"] == 2 * 16 * 4096**2
    alone = counted(table(gemm(dtype="fp8_block")))
    assert alone["hbm"] == 0 and alone["flops"] == large["flops"] / 2  # as many in FP8, at twice the peak
    assert large["busy"] == pytest.approx(100e-6 - POWER.start)


def test_attention_reads_its_kv_cache_from_memory(table):
    generation = counted(table(attention("attention_generation", 1, 65535)))
    assert generation["hbm"] == pytest.approx(8 * 65536 * 2 * 8 * 128 * 2, rel=1e-3)
    context = counted(table(attention("attention_context", 4096, 0)))
    assert context["flops"] >= 8 * 4 * 4096 * 4097 / 2 * 32 * 128


def test_a_rank_has_its_share_of_the_experts(table):
    shape = {"tokens": 512, "hidden": 2048, "inter": 1024, "topk": 8, "experts": 64, "distribution": "balanced"}
    whole, tensor, expert = (counted(table(line("moe", **shape, tp=tp, ep=ep))) for tp, ep in ((1, 1), (4, 1), (1, 4)))
    assert whole["flops"] == pytest.approx(6 * 512 * 8 * 2048 * 1024)
    assert tensor["flops"] == expert["flops"] == pytest.approx(whole["flops"] / 4)
    assert whole["hbm"] > 64 * 3 * 2048 * 1024 * 2 > expert["hbm"]


def test_one_shape_in_five_is_held_out_on_all_gpus_alike(table):
    shapes = [(m, n) for m in range(1, 41) for n in (2048, 4096, 8192)]
    readings_by_gpu = boards.read(table(*(gemm(m=m, n=n, gpu=gpu) for gpu in ("h200_sxm", "gb200") for m, n in shapes)))
    first, second = readings_by_gpu
    assert {first.gpu, second.gpu} == {"h200", "gb200"}
    assert 0.1 < first.held_out.mean() < 0.3 and np.array_equal(first.held_out, second.held_out)


def test_a_limit_draws_shapes_by_hash(table):
    path = table(*(gemm(m=m) for m in range(1, 101)))
    few, more, all_of_them = (boards.read(path, limit) for limit in (10, 30, 200))
    assert [sum(map(len, tables)) for tables in (few, more, all_of_them)] == [10, 30, 100]
    assert {*few[0].counts[:, 3]} <= {*more[0].counts[:, 3]}
    assert 0 < more[0].held_out.sum() < 30  # the rows drawn first are not those held out


@pytest.mark.parametrize("row, problem", [
    (gemm(gpu="tpu_v5"), "has rows of 'tpu_v5', a GPU that the catalogue lacks"),
    (line("mla"), "no kind of kernel is called 'mla'"),
    (gemm(power_w=-1.0), "row 0: power_w is -1.0, and must be positive"),
    (gemm(latency_us=None), "row 0: latency_us is nan, and must be positive"),
    (gemm(dtype="nvfp4"), "H200 SXM does not compute in fp4"),
    ({"gpu": "h200", "power_w": 1.0}, "has no column 'op' and no 'dtype' and no 'latency_us'"),
    ({name: value for name, value in gemm().items() if name != "k"}, "has no column 'k', which gemm needs"),
])
def test_a_faulty_table_of_power_is_refused(table, row, problem):
    with pytest.raises(DataError, match=problem):
        boards.read(table(row))


def test_a_table_of_power_without_rows_is_refused(parquet):
    empty = {name: [] for name in boards.NEEDED}
    with pytest.raises(DataError, match="has no rows"):
        boards.read(parquet(empty, "power.parquet"))


def readings(count, one_in, share=1.0, watts=None):
    """Launches of 20 to 80 us that draw 200 to 600 W, of which beyond idle a meter has a *share*."""
    seconds = np.geomspace(20e-6, 80e-6, count)
    dynamic = np.linspace(70.0, 470.0, count)
    counts = np.zeros((count, 5))
    counts[:, 4] = dynamic / POWER.busy * seconds
    read = POWER.idle + share * dynamic if watts is None else watts
    return Readings("h200", "gemm", "bf16", counts, seconds, read, np.arange(count) % one_in == 0)


@given(st.floats(0.1, 1.2))
def test_a_meter_is_fitted_only_to_rows_that_are_not_held_out(share):
    true = readings(200, 5, share)
    assert metered_watts(true, POWER) == pytest.approx(true.watts)
    assert model_watts(true, POWER) == pytest.approx(readings(200, 5).watts)
    false = readings(200, 5, watts=np.where(true.held_out, 1.0, true.watts))
    assert metered_watts(false, POWER) == pytest.approx(true.watts)


def test_a_meter_needs_enough_rows_and_never_shows_more_than_the_limit():
    few = readings(20, 5, 0.5)
    assert np.array_equal(metered_watts(few, POWER), model_watts(few, POWER))
    assert metered_watts(readings(200, 5, 3.0), POWER).max() == POWER.limit


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.1, 10)), min_size=1))
def test_the_weighted_median_has_the_least_sum_of_weighted_distances(pairs):
    values, weights = np.array(pairs).T
    middle = weighted_median(values, weights)
    distances = [float(np.sum(weights * np.abs(values - place))) for place in (middle, *values)]
    assert min(distances) == pytest.approx(distances[0])
