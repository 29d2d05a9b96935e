"""Kernels of another library: paced kind by kind, and never faster than the hardware."""

import pytest

from ksim.compute.kernels.basic import Gemm
from ksim.foundation.units import DType
from ksim.oracles import bounds, estimate
from ksim.oracles.efficiency.drawn import ScaledOracle
from ksim.oracles.roofline import Roofline
from ksim.oracles.waves import Waves
from ksim.scenario.hardware import gpu_of

BLOCKS = Gemm(16, 4096, 4096, DType.FP8_BLOCK, DType.FP8)


def test_only_named_families_are_scaled():
    gpu, plain = gpu_of("h100"), Waves()
    library = ScaledOracle(plain, {"gemm/fp8_block": 0.9})
    assert estimate(library, BLOCKS, gpu).seconds == pytest.approx(0.9 * estimate(plain, BLOCKS, gpu).seconds)
    assert estimate(library, Gemm(16, 4096, 4096), gpu) == estimate(plain, Gemm(16, 4096, 4096), gpu)


def test_nothing_is_faster_than_the_roofline():
    gpu = gpu_of("h100")
    fast = estimate(ScaledOracle(Roofline(), {"gemm/fp8_block": 1e-6}), BLOCKS, gpu)
    assert fast.seconds == pytest.approx(max(bounds(BLOCKS, gpu)))
