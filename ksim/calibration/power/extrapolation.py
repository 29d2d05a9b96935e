"""What actions cost on a GPU whose kernels nobody ran back to back with a meter on the board: by its data sheet.

Its memory and caches take as many times the joules of the measured GPU as is known of the kind of memory; its SMs take
the same share of what the power limit leaves beyond idle power; and a FLOP takes what is left where a large GEMM that
runs as fast as was observed is just at the limit, which is where they run.
"""

from attrs import evolve

from ksim.compute.kernels.gemm import Gemm
from ksim.cost.energy import actions, joules
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu
from ksim.specs.power import Power

#: A GEMM large enough to be at the limit, and the share of the peak that it reaches where nothing else is known.
LARGE, REACHED = Gemm(8192, 28672, 4096), 0.75


def extrapolated(gpu: Gpu, measured: Power, memory: float, reached: float = REACHED) -> Power:
    """*gpu*'s power after that *measured* on another GPU.

    *memory* is what a byte of its memory takes over one of the other's, *reached* the share of the BF16 peak that a
    large GEMM reaches.  Idle power, limit, links and clocks are *gpu*'s own.
    """
    dynamic = gpu.power.limit - gpu.power.idle
    busy = measured.busy * dynamic / (measured.limit - measured.idle)
    power = evolve(gpu.power, hbm=memory * measured.hbm, write=memory * measured.write, l2=memory * measured.l2,
                   busy=busy, start=measured.start, flop={})
    return evolve(power, flop=_flop(evolve(gpu, power=power), reached))


def _flop(gpu: Gpu, reached: float) -> dict[str | DType, float | str]:
    """Joules of a FLOP in each format; FP32's where its kernels at `REACHED` of that peak are at the limit."""
    power, seconds = gpu.power, LARGE.work.flops / (reached * gpu.flops[DType.BF16])
    left = (power.limit - power.idle) * seconds - joules(actions(LARGE, seconds, gpu), power).total
    bf16 = left / LARGE.work.flops
    fp32 = (power.limit - power.idle - power.busy) / (REACHED * gpu.flops[DType.FP32])
    return {dtype: fp32 if dtype is DType.FP32 else bf16 * gpu.flops[DType.BF16] / peak
            for dtype, peak in gpu.flops.items()}
