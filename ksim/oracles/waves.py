"""The roofline with wave quantisation: thread blocks come in waves, and the last one leaves SMs idle.

``t = start + max(FLOP / peak x u, L2 bytes / L2 bandwidth, bytes / bandwidth) / reach``, ``u = waves x SMs / blocks``,
over the best of the launches a library could choose: which tile, and into how many parts the contracted dimension is
split.  After KernelSight-LM (arXiv 2606.28565), Eq. 2, but for the launch floor: added, it leaves half the error of one
that is a lower bound (GEMM grid of our H200 sweep 9.5 % mean against 15.7 %, attention 9.9 % against 20 %).
"""

from collections.abc import Mapping, Sequence

from attrs import field, frozen, validators

from ksim.compute.kernels import Kernel, Launch, Work
from ksim.foundation.units import quantity
from ksim.oracles import Estimate, peak
from ksim.oracles.efficiency.two_sided import CONSTANTS
from ksim.specs.hardware import Gpu

__all__ = ["Waves"]

#: Bytes that one SM takes from the L2 cache in a clock, at best (NVIDIA, A100 white paper: 5,120 B over 80 slices).
L2_BYTES_PER_CLOCK = 64.0


@frozen
class PeakShares:
    """The shares of the peaks that a family of kernels reaches, after `start` seconds that even the smallest takes."""

    compute: float = field(validator=(validators.gt(0), validators.le(1)))
    memory: float = field(validator=(validators.gt(0), validators.le(1)))
    start: float = field(converter=quantity, validator=validators.ge(0))


#: Least absolute error of log time over our H200 sweep (vLLM 0.22 kernels in CUDA graphs; bf16 rows tagged grid, decode
#: and prefill; the memory-bound families; even MoE).  Other GPUs are taken to reach as much of their own peaks.
PEAK_SHARES = {
    "gemm": PeakShares(compute=0.76, memory=0.86, start=3.6e-6),
    "grouped_gemm": PeakShares(compute=0.46, memory=0.89, start=8.5e-6),
    "attention": PeakShares(compute=0.60, memory=0.90, start=10.9e-6),
    "mla": PeakShares(compute=0.55, memory=0.72, start=13.8e-6),
    # Fitted to public tables, as in two_sided; two families have constants by architecture there.
    **{name: PeakShares(by_architecture[""].compute, by_architecture[""].memory, by_architecture[""].start)
       for name, by_architecture in CONSTANTS.items()},
    "delta_prompts": PeakShares(compute=0.2, memory=0.5, start=8.5e-6),
    "kda_prompts": PeakShares(compute=0.2, memory=0.4, start=17e-6),
    "rope": PeakShares(compute=1.0, memory=0.42, start=2.1e-6),
    "kv_write": PeakShares(compute=1.0, memory=0.23, start=1.9e-6),
    "argmax": PeakShares(compute=1.0, memory=0.71, start=8.7e-6),
    "pointwise": PeakShares(compute=1.0, memory=0.82, start=1.8e-6),
}


@frozen
class Waves:
    """`reach` overrides what families are taken to reach; families that it and the default lack are pointwise."""

    reach: Mapping[str, PeakShares] = field(factory=dict)

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> list[Estimate]:
        return [self.estimate(kernel, gpu) for kernel in kernels]

    def seconds(self, kernel: Kernel, gpu: Gpu) -> float:
        return self.estimate(kernel, gpu).seconds

    def estimate(self, kernel: Kernel, gpu: Gpu) -> Estimate:
        shares = self.reach.get(kernel.family) or PEAK_SHARES.get(kernel.family) or PEAK_SHARES["pointwise"]
        work, launches = kernel.work, kernel.launches(gpu.sms)
        if not launches:
            arithmetic = work.flops / peak(gpu, work.dtype) / shares.compute
            memory = work.bytes / gpu.bandwidth / shares.memory
            return _estimate(arithmetic, memory, shares)
        arithmetic, memory, launch = _fastest(launches, work, gpu, shares)
        return _estimate(arithmetic, memory, shares, launch.blocks / gpu.sms, launch.idle(gpu.sms), launch.name)


def _fastest(launches: Sequence[Launch], work: Work, gpu: Gpu, shares: PeakShares) -> tuple[float, float, Launch]:
    """Seconds that the SMs need, seconds that device memory needs, and the launch that needs least of the larger."""
    sms, traffic = gpu.sms, work.bytes
    per_flop = sms / (peak(gpu, work.dtype) * shares.compute)
    per_operand = 1 / (L2_BYTES_PER_CLOCK * gpu.clock * shares.compute)
    per_byte = 1 / (gpu.bandwidth * shares.memory)
    best = (float("inf"), float("inf"), launches[0])
    for launch in launches:
        arithmetic = launch.busiest(sms) * max(launch.flops * per_flop, launch.l2_bytes * per_operand)
        memory = (traffic + launch.extra_bytes) * per_byte
        # Of launches that memory makes equal, the first that computes faster.
        if (max(arithmetic, memory), arithmetic) < (max(best[0], best[1]), best[0]):
            best = (arithmetic, memory, launch)
    return best


def _estimate(arithmetic: float, memory: float, shares: PeakShares, waves: float = 0.0, idle: float = 0.0,
              launch: str = "") -> Estimate:
    seconds = shares.start + max(arithmetic, memory)
    roofline = max(arithmetic * shares.compute, memory * shares.memory)
    return Estimate(seconds, _bound(arithmetic, memory, shares), waves, idle, launch, "waves", seconds / roofline)


def _bound(arithmetic: float, memory: float, shares: PeakShares) -> str:
    if shares.start > max(arithmetic, memory):
        return "launch"
    return "compute" if arithmetic > memory else "memory"
