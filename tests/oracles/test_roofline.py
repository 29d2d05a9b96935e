"""The plain roofline, on a GPU of 4 GFLOP/s and 1 GB/s."""

import pytest
from attrs import evolve

from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.oracles.roofline import Roofline
from tests.cost.toys import TOY, Shape, blocks


@pytest.mark.parametrize("flops, moved, seconds, bound", [
    (8e9, 1e9, 2.0, "compute"),  # 8 GFLOP take 2 s, 1 GB takes 1
    (8e9, 3e9, 3.0, "memory"),
    (8e9, 2e9, 2.0, "memory"),  # on the ridge
])
def test_the_roofline_is_the_slower_of_arithmetic_and_traffic(flops, moved, seconds, bound):
    found = Roofline().estimate(Shape(flops, moved), TOY)
    assert (found.seconds, found.bound, found.source) == (seconds, bound, "roofline")


def test_kernels_may_reach_a_share_of_the_peaks():
    oracle = Roofline(compute=0.5, memory=0.8)
    assert oracle.seconds(Shape(8e9, 0), TOY) == 4.0
    assert oracle.seconds(Shape(0, 4e9), TOY) == 5.0


def test_how_the_blocks_fall_does_not_matter():
    assert Roofline().seconds(blocks(9), TOY) == 9 / 4


def test_each_format_has_its_peak():
    fast = evolve(TOY, flops={**TOY.flops, DType.FP8: 8e9})
    assert Roofline().seconds(Shape(8e9, 0, dtype=DType.FP8), fast) == 1.0


def test_a_gpu_without_the_format_says_what_to_do():
    with pytest.raises(ConfigError) as error:
        Roofline().seconds(Shape(8e9, 0, dtype=DType.FP8), TOY)
    assert str(error.value) == ("gpu toy: computes no fp8 (it has bf16, fp32); choose another quantization,"
                                " such as 'fp8_w8a16' for weights alone")


@pytest.mark.parametrize("options", [{"compute": 0}, {"compute": 1.2}, {"memory": -1}, {"memory": "most"}])
def test_impossible_peak_shares_of_the_roofline_are_refused(options):
    with pytest.raises(ConfigError, match=f"roofline: .*{next(iter(options))}"):
        plugin("oracles", Choice("roofline", options))
