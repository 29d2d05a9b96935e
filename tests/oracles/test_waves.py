"""Wave quantisation, on a GPU of four SMs that each do 1 GFLOP/s."""

import pytest

from ksim.compute.kernels import Launch
from ksim.compute.kernels.basic import Gemm, Pointwise
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.oracles.waves import PEAK_SHARES, PeakShares, Waves
from ksim.scenario.hardware import gpu_of
from tests.cost.toys import TOY, Shape, blocks

PERFECT = Waves({"shape": PeakShares(compute=1, memory=1, start=0)})


@pytest.mark.parametrize("count, waves", [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_come_in_waves(count, waves):
    """Nine blocks of 1 s on four SMs take three waves: 12/9 of the 2.25 s that the peak would allow."""
    found = PERFECT.estimate(blocks(count), TOY)
    assert found.seconds == waves
    assert found.waves == count / 4
    assert found.idle == (4 * waves - count) / 4


def test_the_start_is_added_and_the_reach_divides():
    oracle = Waves({"shape": PeakShares(compute=0.5, memory=0.25, start="10 ms")})
    assert oracle.seconds(blocks(9), TOY) == pytest.approx(0.01 + 3 / 0.5)
    assert oracle.seconds(Shape(bytes=1e9), TOY) == pytest.approx(0.01 + 1 / 0.25)


@pytest.mark.parametrize("kernel, bound", [
    (blocks(4, 1e9, bytes=9e8), "compute"), (blocks(4, 1e9, bytes=2e9), "memory"), (blocks(4, 1e6), "launch"),
    (Shape(flops=8e9), "compute"), (Shape(bytes=2e9), "memory"), (Shape(bytes=1e3), "launch"),
])
def test_a_kernel_is_bound_by_compute_memory_or_launch(kernel, bound):
    """Half a second of start is more than what the small ones compute or move."""
    assert Waves({"shape": PeakShares(compute=1, memory=1, start=0.5)}).estimate(kernel, TOY).bound == bound


def test_the_fastest_launch_is_taken():
    """9 large blocks take 3 waves of 1 s; 36 small ones that do 1/4 each, 9 waves of 1/4 s."""
    large, small = Launch("large", 9, 1e9), Launch("small", 36, 0.25e9)
    found = PERFECT.estimate(Shape(9e9, ways=(large, small)), TOY)
    assert (found.seconds, found.launch) == (2.25, "small")


def test_launches_equal_by_memory_are_named_after_the_faster_in_arithmetic():
    slow, fast = Launch("slow", 8, 1e9), Launch("fast", 4, 1e9)
    assert PERFECT.estimate(Shape(4e9, 9e9, ways=(slow, fast)), TOY).launch == "fast"


def test_partial_sums_cost_traffic():
    """Four parts of a quarter each fill the SMs, but 2 GB of partial sums take longer than the second saved."""
    whole, split = Launch("whole", 1, 2e9), Launch("split", 4, 0.5e9, extra_bytes=2.5e9)
    assert PERFECT.estimate(Shape(2e9, ways=(whole, split)), TOY).launch == "whole"


def test_operands_pass_through_the_l2_cache():
    """An SM takes 64 B a clock of 1 GHz: 128 GB of operands take a block 2 s, more than its 1 GFLOP."""
    assert PERFECT.seconds(blocks(4, l2_bytes=128e9), TOY) == 2.0


def test_unequal_blocks_are_balanced_until_the_longest_binds():
    """Nine blocks of 1 s on average take 9/4 s, or as long as the longest of them."""
    assert PERFECT.seconds(blocks(9, longest=1.5e9), TOY) == 9 / 4
    assert PERFECT.seconds(blocks(9, longest=4e9), TOY) == 4.0


def test_a_family_that_nothing_is_known_of_is_pointwise():
    other = Pointwise("unheard_of", 1e9, 1e9, 0.0, 1)
    assert Waves().seconds(other, TOY) == PEAK_SHARES["pointwise"].start + 2 / PEAK_SHARES["pointwise"].memory


def test_the_reach_of_a_family_can_be_set_in_a_scenario():
    reach = {"gemm": {"compute": 0.5, "memory": 0.5, "start": "5 us"}}
    slow = plugin("oracles", Choice("waves", {"reach": reach}))
    kernel = Gemm(4096, 4096, 4096)
    assert slow.seconds(kernel, gpu_of("h200")) > Waves().seconds(kernel, gpu_of("h200"))
    assert slow.seconds(Shape(bytes=1e9), TOY) == Waves().seconds(Shape(bytes=1e9), TOY)


@pytest.mark.parametrize("reach, problem", [
    ({"compute": 0, "memory": 1, "start": 0}, "'compute' must be > 0"),
    ({"compute": 1, "memory": 1.5, "start": 0}, "'memory' must be <= 1"),
    ({"compute": 1, "memory": 1, "start": "-1 us"}, "'start' must be >= 0"),
    ({"compute": 1, "memory": 1}, "start: is missing"),
])
def test_impossible_peak_shares_of_waves_are_refused(reach, problem):
    with pytest.raises(ConfigError, match=problem):
        plugin("oracles", Choice("waves", {"reach": {"gemm": reach}}))


def test_a_skinny_product_is_bound_by_its_weights_not_by_its_few_tiles():
    """One row of a 4096 x 4096 product on an H200: 33.6 MB in 8.1 us at 86 % of 4.8 TB/s, and the start."""
    found = Waves().estimate(Gemm(1, 4096, 4096), gpu_of("h200"))
    assert found.bound == "memory"
    assert found.seconds == pytest.approx(3.6e-6 + 33.57e6 / 4.8e12 / 0.86, rel=0.01)


def test_a_gpu_without_the_format_says_what_to_do():
    with pytest.raises(ConfigError, match=r"gpu A100 .*computes no fp8 .*such as 'fp8_w8a16' for weights alone"):
        Waves().seconds(Gemm(8, 4096, 4096, DType.FP8, DType.FP8), gpu_of("a100-80g"))
    assert Waves().seconds(Gemm(8, 4096, 4096, DType.FP8), gpu_of("a100-80g")) > 0
