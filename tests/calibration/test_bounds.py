"""What points compute and move: as the kernels that ksim simulates say, whatever the shape."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.calibration.batches import PointBatches
from ksim.calibration.bounds import floor, work
from ksim.calibration.grids import GRIDS
from ksim.calibration.kernels import kernels, seconds
from ksim.calibration.measurements import COLLECTIVES, FAMILIES, Points, tagged
from ksim.foundation.errors import DataError
from ksim.oracles.roofline import Roofline
from ksim.scenario.hardware import gpu_of
from tests.properties import examples

H200 = gpu_of("h200")


def points(family, dtype="bf16", batch=None, **columns):
    """One point."""
    return Points(family=family, dtype=dtype, columns={name: np.array([value]) for name, value in columns.items()},
                  tags=tagged("", 1), batches=None if batch is None else PointBatches.of(batch))


def expected(made):
    done = [kernel.work for kernel in kernels(made, 0)]
    return sum(part.flops for part in done), sum(part.bytes for part in done)


@examples(60)
@given(st.sampled_from(sorted({*GRIDS} - {"gemm", "attention", "moe"})), st.integers(1, 9000), st.integers(1, 64))
def test_bytes_of_pointwise_points_are_those_of_their_kernels(family, tokens, size):
    made = points(family, **{name: tokens if name in ("t", "bytes") else size for name in FAMILIES[family].needs})
    assert work(made).bytes[0] == pytest.approx(expected(made)[1], rel=1e-6)


@examples(60)
@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 9000), st.sampled_from(["bf16", "fp8", "fp8_w8a16"]))
def test_work_and_floor_of_gemms_are_those_of_their_kernels(m, n, k, dtype):
    made = points("gemm", dtype, m=m, n=n, k=k)
    assert (work(made).flops[0], work(made).bytes[0]) == pytest.approx(expected(made))
    assert floor(made, H200)[0] == pytest.approx(Roofline().seconds(kernels(made, 0)[0], H200))


pairs = st.tuples(st.integers(1, 600), st.integers(0, 9000)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@examples(100)
@given(st.lists(pairs, min_size=1, max_size=6), st.sampled_from([0, 1, 17, 4096]), st.sampled_from(["bf16", "fp8"]))
def test_work_of_attention_is_that_of_its_kernels_for_ragged_batches_and_windows(batch, window, dtype):
    made = points("attention", dtype, batch, hq=32, hkv=8, d=128, window=window)
    assert (work(made).flops[0], work(made).bytes[0]) == pytest.approx(expected(made))


@given(st.integers(1, 500), st.sampled_from([(8, 2), (128, 8)]))
def test_work_of_expert_layers_is_that_of_their_products(tokens, experts):
    made = points("moe", t=tokens, e=experts[0], topk=experts[1], h=1024, inter=512, active=experts[1])
    flops, moved = expected(made)
    assert work(made).flops[0] == pytest.approx(flops)
    assert 0 < work(made).bytes[0] <= moved * 1.0001


@pytest.mark.parametrize("family", COLLECTIVES)
def test_collectives_are_bound_by_links(family):
    made = points(family, gpus=8, bytes=2**30)
    assert floor(made, H200)[0] == pytest.approx(7 / 8 * 2**30 / H200.nvlink)
    assert floor(made, gpu_of("l40s"))[0] == pytest.approx(7 / 8 * 2**30 / gpu_of("l40s").pcie)
    with pytest.raises(DataError, match=f"{family} bf16: is not a family that a single GPU runs"):
        seconds(made, H200)


def test_latent_attention_reads_its_cache():
    made = points("mla", "fp8", [(1, 1000)], hq=16, tp=8)
    assert work(made).bytes[0] == 576_000


def test_an_unknown_number_format_is_an_error():
    with pytest.raises(DataError, match="gemm int3: 'int3' is not a number format that ksim knows"):
        work(points("gemm", "int3", m=1, n=1, k=1))
