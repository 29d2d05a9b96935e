"""Joules of a kernel, on a GPU of 2 nJ/FLOP, 3 nJ/B of memory and 5 nJ/B of links."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.basic import Gemm, GroupedGemm, Pointwise
from ksim.cost.energy import Actions, actions, joules, sending
from ksim.flow.batch import Batch
from ksim.foundation.units import DType
from ksim.scenario.hardware import gpu_of
from tests.cost.toys import TOY, Shape


def cost(kernel, seconds=1.0, **power):
    gpu = evolve(TOY, power=evolve(TOY.power, **power))
    return joules(actions(kernel, seconds, gpu), gpu.power)


def test_arithmetic_and_traffic_cost_each_their_own():
    """Arithmetic goes with the voltage of the SMs, memory does not."""
    found = cost(Shape(flops=1e9, bytes=1e8))
    assert (found.core, found.rest) == pytest.approx((2, 0.3))


def test_a_format_without_a_figure_costs_its_traffic_alone():
    assert cost(Shape(flops=1e9, bytes=1e8, dtype=DType.FP32)).total == pytest.approx(0.3)


def test_sms_draw_power_while_they_work_and_not_while_a_kernel_starts():
    assert cost(Shape(), 3.0, busy=7.0, start=1.0).busy == pytest.approx(14)
    assert cost(Shape(), 0.5, busy=7.0, start=1.0).busy == 0


def test_sms_draw_more_in_grouped_gemms_where_that_is_known():
    experts = GroupedGemm(((4, 8.0),), 1024, 2048, 4, DType.FP8_BLOCK, DType.FP8)
    assert cost(experts, busy=7.0, experts={DType.FP8: 21.0}).busy == pytest.approx(21)
    assert cost(experts, busy=7.0, experts={DType.BF16: 21.0}).busy == pytest.approx(7)
    assert cost(Shape(), busy=7.0, experts={DType.BF16: 21.0}).busy == pytest.approx(7)


def test_what_fits_the_l2_cache_is_still_there_when_the_next_kernel_comes():
    """The cache holds 1 MB: a kernel that moves 0.8 MB finds it there, one of 0.9 MB does not."""
    for size, memory in ((0.8e6, 0.0), (0.9e6, 0.9e6 * 3e-9)):
        found = cost(Pointwise("add", size / 2, size / 2, 0.0, 1), l2=1e-9)
        assert (found.core, found.rest) == pytest.approx((size * 1e-9, memory))


def test_writing_costs_more_than_reading():
    assert cost(Pointwise("add", 0.0, 1e8, 0.0, 1), write=1e-9).rest == pytest.approx(0.4)


def test_tiles_are_filled_up():
    """One row of a GEMM is computed as sixteen; a decode's query heads of a KV head as sixty-four."""
    one, sixteen = (Gemm(rows, 1024, 1024).work for rows in (1, 16))
    assert one.padded == sixteen.padded == sixteen.flops
    decode = AttentionLayer(32, 8, 128).over(Batch.of((1, 1023))).work
    assert decode.padded == 16 * decode.flops


def test_a_message_costs_what_is_read_written_and_sent_and_the_time_of_its_sms():
    power = evolve(TOY.power, write=1e-9, l2=1e-10, busy=8.0, network=6e-9)
    found = joules(sending(1e9, 0.5e9, 2.0), power)
    assert found.rest == pytest.approx(2 * 3 + 1 + 5 + 3)
    assert found.core == pytest.approx(0.2)
    assert found.busy == pytest.approx(0.25 * 8 * 2)


def test_a_large_product_on_an_h200_is_above_the_limit_at_the_boost_clock():
    """1.40 ms at 1,980 MHz; 1.10 J beyond idle power were measured at duty cycles of 25 and 50 %."""
    gpu = gpu_of("h200")
    found = joules(actions(Gemm(8192, 8192, 8192), 1.405e-3, gpu), gpu.power)
    assert found.total == pytest.approx(1.10, rel=0.05)
    assert gpu.power.idle + found.total / 1.405e-3 > 1.2 * gpu.power.limit


amounts = st.floats(0, 1e12)


@given(st.lists(amounts, min_size=7, max_size=7), st.lists(amounts, min_size=7, max_size=7))
def test_energy_is_additive_and_never_negative(first, second):
    names = ("flops", "hbm", "written", "l2", "busy", "sent", "routed")
    power = gpu_of("h200").power
    each = [joules(Actions(**dict(zip(names, counts, strict=True))), power) for counts in (first, second)]
    both = joules(Actions(**{name: a + b for name, a, b in zip(names, first, second, strict=True)}), power)
    assert both.total == pytest.approx(sum(part.total for part in each), rel=1e-9, abs=1e-30)
    assert min(part.core for part in each) >= 0 and min(part.rest for part in each) >= 0
