"""Kernels of which a start and the shares of the peaks that they reach say enough, by their FLOP and bytes.

``seconds = start + steps x step + (compute^p + memory^p)^(1/p)``.  `steps` are what a kernel does one after the other
whatever the GPU's size, such as the chunks of a recurrence.  Constants are each family's own.
"""

from collections.abc import Mapping

import numpy as np
from attrs import field, frozen, validators

from ksim.cost.efficiency.physics import Array, Physics
from ksim.foundation.units import quantity
from ksim.specs.hardware import Gpu

__all__ = ["FEATURES", "LAUNCHES", "REACHES", "Reach", "physics"]

FEATURES = ("start_share", "log_compute_over_memory", "log_bytes_over_l2")
LAUNCHES = ("whole",)


@frozen
class Reach:
    """Seconds to `start` and of each `step`, shares of the peaks, and how sharply the larger side wins.

    `within` is how far, in log time, nine of ten of the kernels that the rest was fitted to are from it at most.
    """

    start: float = field(converter=quantity, validator=validators.ge(0))
    compute: float = field(validator=(validators.gt(0), validators.le(1)))
    memory: float = field(validator=(validators.gt(0), validators.le(1)))
    sharpness: float = field(validator=validators.ge(1))
    step: float = field(default=0.0, converter=quantity, validator=validators.ge(0))
    within: float = field(default=0.5, validator=validators.gt(0))


#: By family.  Fitted to kernels that NVIDIA AIConfigurator measured (095f58a, Apache-2.0), least robust squares of log
#: time, and the mean error over the rows fitted to:
#: batched_gemm: 3,816 of latent attention's products (mla_bmm, vLLM 0.24 over torch.bmm), six GPUs of Hopper and
#: Blackwell, 12 %; the share of the bandwidth is held at 1, for what they read is in the L2 cache there.
#: index_scores and sparse_mla together: 600 of GLM-5's attention modules (vLLM 0.24, BF16; H100, H200, B200), less what
#: ksim makes of their other kernels, 13 % of the module, decodes 11 %, prompts of up to 33,000 tokens 15 %.  The start
#: is all that modules take beyond that at least: vLLM launches more around the indexer than is written down here.
REACHES: Mapping[str, Reach] = {
    "batched_gemm": Reach(start=4.2e-6, compute=0.6, memory=1.0, sharpness=1.8, within=0.3),
    "index_scores": Reach(start=130e-6, compute=1.0, memory=0.67, sharpness=2.0, within=0.3),
    "sparse_mla": Reach(start=14e-6, compute=0.425, memory=1.0, sharpness=8.0, within=0.3),
}


def physics(gpu: Gpu, shapes: Mapping[str, Array], reach: Reach) -> Physics:
    """Price kernels by their columns `flops` and `peak` (FLOP/s of their format), `bytes`, and `steps`."""
    compute, memory = shapes["flops"] / shapes["peak"], shapes["bytes"] / gpu.bandwidth
    fixed = reach.start + reach.step * shapes["steps"]
    power = reach.sharpness
    # Scaled by the larger side, for high powers of seconds vanish.
    larger = np.maximum(np.maximum(compute / reach.compute, memory / reach.memory), 1e-12)
    joined = ((compute / reach.compute / larger) ** power + (memory / reach.memory / larger) ** power) ** (1.0 / power)
    seconds = fixed + larger * joined
    features = np.column_stack([
        fixed / seconds, np.clip(np.log(np.maximum(compute, 1e-12) / np.maximum(memory, 1e-12)), -6.0, 6.0),
        np.log(np.maximum(shapes["bytes"], 1.0) / gpu.l2)])
    nothing = np.zeros_like(seconds)
    return Physics(seconds, np.maximum(compute, memory), compute, memory, nothing, nothing,
                   np.zeros(len(seconds), dtype=np.intp), features)
