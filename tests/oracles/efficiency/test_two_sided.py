"""Kernels that no profile knows: priced by physics alone, and said to be."""

from math import exp
from typing import Any

import numpy as np
import pytest

from ksim.compute.kernels.basic import BatchedGemm
from ksim.compute.kernels.mla import IndexScores, LatentAttention, SparseLatentLayer
from ksim.compute.kernels.states import DeltaRule
from ksim.flow.batch import Batch
from ksim.oracles import estimate
from ksim.oracles.efficiency.families import family, family_of
from ksim.oracles.efficiency.two_sided import CONSTANTS, TwoSides, constants_of, physics
from ksim.oracles.learned import Learned
from ksim.oracles.measured import Measured
from ksim.scenario.hardware import gpu_of
from tests.cost.toys import TOY

H200, B200, L40S = (gpu_of(name) for name in ("h200", "b200", "l40s"))
BATCH = Batch.of(*[(1, 4000)] * 64)
KERNELS: list[Any] = [BatchedGemm(16, 64, 512, 128), IndexScores("decodes", 32, 128).counted(BATCH),
           SparseLatentLayer(8, 512, 64, 2048).over(BATCH), DeltaRule("decodes", 8, 2, 128).counted(BATCH)]


def seconds(reach: TwoSides, flops: float = 0.0, moved: float = 0.0, steps: float = 0.0) -> float:
    """On a toy of 4 GFLOP/s and 1 GB/s."""
    shapes = {"flops": np.array([flops]), "peak": np.array([4e9]), "bytes": np.array([moved]),
              "steps": np.array([steps])}
    return float(physics(TOY, shapes, reach).seconds[0])


def test_the_larger_side_wins_after_a_start():
    reach = TwoSides(start=1.0, compute=0.5, memory=0.25, sharpness=50.0, step=3.0)
    assert seconds(reach, flops=4e9) == pytest.approx(1 + 2)
    assert seconds(reach, moved=1e9) == pytest.approx(1 + 4)
    assert seconds(reach, steps=2) == pytest.approx(1 + 6)
    assert seconds(reach, flops=4e9, moved=1e9, steps=2) == pytest.approx(1 + 6, rel=1e-3)
    assert seconds(TwoSides(start=0.0, compute=0.5, memory=0.25, sharpness=1.0), 4e9, 1e9) == pytest.approx(2 + 4)


@pytest.mark.parametrize("oracle", [Learned(), Measured()], ids=["learned", "measured"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.family)
def test_kernels_without_a_profile_are_extrapolated_with_wider_intervals(oracle, kernel):
    found = estimate(oracle, kernel, H200)
    within = constants_of(kernel.family, H200).within
    assert found.extrapolated and found.source == f"{type(oracle).__name__.lower()}, by physics alone"
    assert found.high == pytest.approx(found.seconds * exp(within))


def test_latent_attention_of_real_heads_is_within_what_was_measured():
    """All that tensor parallelism makes of 128 heads, prompts and decodes."""
    for heads in (8, 16, 32, 64, 128):
        for form, batch in (("absorbed", BATCH), ("expanded", Batch.of((4000, 0)))):
            found = estimate(Measured(), LatentAttention(form, heads, 128, 64, 128, 512).counted(batch), H200)
            assert (found.source, found.extrapolated) == ("measured", False)


def test_every_set_of_constants_has_kernels():
    assert {kernel.family for kernel in KERNELS} <= {*CONSTANTS}
    assert all(family_of(kernel) is family(kernel.family) for kernel in KERNELS)


def test_constants_of_another_architecture_are_less_certain():
    assert constants_of("batched_gemm", L40S).within > 2 * constants_of("batched_gemm", H200).within
    assert constants_of("delta_prompts", H200) != constants_of("delta_prompts", B200)


def test_sixty_four_heads_take_blackwell_as_long_as_twice_as_many():
    """Hopper's tiles hold 64 heads, Blackwell's 128; a prompt, so that arithmetic is what takes long."""
    few, more = (SparseLatentLayer(heads, 512, 64, 2048).over(Batch.of((8192, 8192))) for heads in (64, 128))
    for gpu, times in ((H200, 2.0), (B200, 1.0)):
        ratio = estimate(Measured(), more, gpu).seconds / estimate(Measured(), few, gpu).seconds
        assert ratio == pytest.approx(times, rel=0.1)
