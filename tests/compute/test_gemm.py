"""A dense product's FLOP, bytes and launches, counted by hand."""

import pytest

from ksim.compute.kernels.basic import Gemm
from ksim.foundation.units import DType


def test_work_in_bf16():
    work = Gemm(m=100, n=6144, k=4096).work
    assert work.flops == 5_033_164_800  # 2 x 100 x 6144 x 4096
    assert work.reads == 51_150_848  # 2 bytes for each of 6144 x 4096 weights and 100 x 4096 activations
    assert work.writes == 1_228_800  # 100 x 6144 results of 2 bytes
    assert work.bytes == 52_379_648
    assert work.dtype is DType.BF16


def test_fp8_halves_what_is_read_but_not_what_is_written():
    work = Gemm(100, 6144, 4096, weights=DType.FP8, activations=DType.FP8).work
    assert (work.reads, work.writes) == (25_575_424, 1_228_800)
    assert work.dtype is DType.FP8


def test_weights_alone_in_fp8_compute_in_the_format_of_the_activations():
    work = Gemm(100, 6144, 4096, weights=DType.FP8).work
    assert work.reads == 6144 * 4096 + 100 * 4096 * 2
    assert work.dtype is DType.BF16


def test_blocks_of_a_tile():
    """4096 x 4096 in tiles of 128 x 128 are 32 x 32 blocks: 7.76 waves on 132 SMs, the last of them 24 % idle."""
    launch = next(x for x in Gemm(4096, 4096, 4096).launches(132) if x.name == "128x128")
    assert launch.blocks == 1024
    assert launch.flops == 2 * 128 * 128 * 4096
    assert launch.l2_bytes == (128 + 128) * 4096 * 2
    assert launch.waves(132) == 8
    assert launch.idle(132) == pytest.approx(32 / 132)
    assert launch.busiest(132) == 8


def test_few_tiles_offer_splits_of_the_contracted_dimension():
    """16 x 4096 in tiles of 16 x 64 are 64 blocks; the second half adds partial sums in FP32, written and read."""
    launch = next(x for x in Gemm(16, 4096, 4096).launches(132) if x.name == "16x64/2")
    assert launch.blocks == 128
    assert launch.flops == 2 * 16 * 64 * 2048
    assert launch.extra_bytes == 2 * 16 * 4096 * 4


@pytest.mark.parametrize("m", [1, 8, 16, 17, 64, 200])
def test_no_tile_is_more_than_half_empty_but_the_smallest(m):
    rows = [int(launch.name.partition("x")[0]) for launch in Gemm(m, 4096, 4096).launches(132)]
    assert all(tile < 2 * m or tile == 16 for tile in rows)
    assert rows
