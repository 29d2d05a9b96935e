"""Kernels that only move memory."""

import pytest

from ksim.compute.kernels.basic import Pointwise
from ksim.compute.notation.pointwise import pointwise
from tests.compute.notation.layers import launched


def test_it_reads_and_writes_tensors_a_row_a_token():
    """4,096 tokens of 2 x 28,672 numbers come in, half as many go out, each of two bytes."""
    act = pointwise("silu_mul", "bsgF->bsF", "F")
    assert launched(act) == [("silu_mul", Pointwise("silu_mul", 469_762_048, 234_881_024, 234_881_024, 4096))]
    assert launched(act, tensor=8) == [("silu_mul", Pointwise("silu_mul", 58_720_256, 29_360_128, 29_360_128, 4096))]


def test_sequence_parallel_ranks_have_some_of_the_rows():
    assert launched(pointwise("rms_norm", "bsm->bsm", "s"), tensor=8)[0][1].rows == 512


def test_weights_are_read_too_and_no_operation():
    bare, scaled = (launched(pointwise("rms_norm", "bsm->bsm", scale=scale))[0][1] for scale in ("", "m"))
    assert scaled.read_bytes - bare.read_bytes == 8192 * 2
    assert scaled.flops == bare.flops


def test_formats_and_rows():
    quantized = pointwise("quantize", "ETm->ETm", writes="fp8", rows="ET", label="inputs")
    values = 16 * 512 * 8192
    assert launched(quantized) == [("inputs", Pointwise("quantize", 2.0 * values, values, values, 8192))]


def test_rows_that_the_equation_lacks():
    with pytest.raises(ValueError) as error:
        pointwise("quantize", "ETm->ETm")
    assert str(error.value) == "'ETm->ETm': none of its indices is one of the rows, 'bs'; name others with rows="
    with pytest.raises(ValueError, match="parallel index 'K' is not one of b, s, m"):
        pointwise("rms_norm", "bsm->bsm", "K")
