"""Joules of a kernel, on a GPU of 2 nJ/FLOP, 3 nJ/B of memory and 5 nJ/B of links."""

import pytest

from ksim.compute.kernels.gemm import Gemm
from ksim.cost.energy import joules, sent_joules
from ksim.foundation.units import DType
from ksim.studies.lookup import gpu_of
from tests.cost.toys import TOY, Shape


def test_arithmetic_and_traffic_cost_each_their_own():
    assert joules(Shape(flops=1e9, bytes=1e8), TOY.power) == pytest.approx(2 + 0.3)


def test_a_message_costs_what_is_sent():
    assert sent_joules(1e9, TOY.power) == pytest.approx(5)


def test_a_format_without_a_figure_costs_its_traffic_alone():
    assert joules(Shape(flops=1e9, bytes=1e8, dtype=DType.FP32), TOY.power) == pytest.approx(0.3)


def test_a_large_product_on_an_h200():
    """1.1 TFLOP at 0.755 pJ, and 403 MB at 101.5 pJ: 0.87 J, nearly all of it arithmetic."""
    work = Gemm(8192, 8192, 8192).work
    assert joules(Gemm(8192, 8192, 8192), gpu_of("h200").power) == pytest.approx(
        work.flops * 0.755e-12 + work.bytes * 101.5e-12)
    assert joules(Gemm(8192, 8192, 8192), gpu_of("h200").power) == pytest.approx(0.871, abs=0.001)
