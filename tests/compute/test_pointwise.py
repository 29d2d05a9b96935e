"""Kernels that only move memory."""

from ksim.compute.kernels.basic import Pointwise
from ksim.foundation.units import DType


def test_work_is_what_it_was_told():
    work = Pointwise("silu_mul", read_bytes=400.0, write_bytes=200.0, flops=200.0, rows=2).work
    assert (work.flops, work.reads, work.writes, work.bytes) == (200.0, 400.0, 200.0, 600.0)
    assert work.dtype is DType.FP32


def test_it_spreads_evenly_however_it_is_launched():
    assert not Pointwise("rope", 1.0, 1.0, 1.0, 1).launches(132)
