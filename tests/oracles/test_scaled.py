"""Kernels of another library: paced kind by kind, and never faster than the hardware."""

import numpy as np
import pytest

from ksim.compute.graph import KernelSweep
from ksim.compute.kernels.basic import Gemm
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.oracles import bounds, estimate, estimates
from ksim.oracles.efficiency.drawn import ScaledOracle
from ksim.oracles.roofline import Roofline
from ksim.oracles.waves import Waves
from ksim.scenario.hardware import engine_of, gpu_of

BLOCKS = Gemm(16, 4096, 4096, DType.FP8_BLOCK, DType.FP8)


def test_only_named_families_are_scaled():
    gpu, plain = gpu_of("h100"), Waves()
    library = ScaledOracle(plain, {"gemm/fp8_block": 0.9})
    assert estimate(library, BLOCKS, gpu).seconds == pytest.approx(0.9 * estimate(plain, BLOCKS, gpu).seconds)
    assert estimate(library, Gemm(16, 4096, 4096), gpu) == estimate(plain, Gemm(16, 4096, 4096), gpu)


@pytest.mark.parametrize("rows, factor", [(8, 1.5), (511, 1.5), (512, 0.9), (4096, 0.9)])
def test_factors_go_by_architecture_and_rows(rows, factor):
    plain, kernel = Waves(), Gemm(rows, 4096, 4096, DType.FP8_BLOCK, DType.FP8)
    library = ScaledOracle(plain, {"gemm/fp8_block": 2.0, "gemm/fp8_block@hopper": {"1": 1.5, "512": 0.9}})
    for name, expected in (("h100", factor), ("b200", 2.0)):
        gpu = gpu_of(name)
        assert estimate(library, kernel, gpu).seconds == pytest.approx(expected * estimate(plain, kernel, gpu).seconds)


def test_factors_by_rows_are_of_sweeps_over_several_families_too():
    rows = np.array([8, 512, 4096])
    sweep = KernelSweep(Gemm(rows, 4096, 4096, DType.FP8_BLOCK, DType.FP8), ("gemm", "gemm"), np.array([0, 1, 0]))
    gpu, library = gpu_of("h200"), ScaledOracle(Waves(), {"gemm/fp8_block": {"1": 1.5, "512": 0.9}})
    assert estimates(library, sweep, gpu).seconds == pytest.approx(estimates(library, [*sweep], gpu).seconds)


def test_factors_by_rows_are_of_gemms(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nlike = "sglang-0.5"\nsource = "a test"\n[paces]\n"rope/" = {1 = 0.5}\n')
    with pytest.raises(ConfigError, match="'rope/': expected a positive number, or for GEMMs such numbers by rows"):
        engine_of(str(file))


def test_nothing_is_faster_than_the_roofline():
    gpu = gpu_of("h100")
    fast = estimate(ScaledOracle(Roofline(), {"gemm/fp8_block": 1e-6}), BLOCKS, gpu)
    assert fast.seconds == pytest.approx(max(bounds(BLOCKS, gpu)))
