"""What actions cost on a GPU whose kernels nobody ran back to back with a meter on the board: by its data sheet.

Its memory and caches take as many times the joules of the measured GPU as is known of the kind of memory; its SMs take
the same share of what the power limit leaves beyond idle power; and a FLOP takes what is left where a large GEMM that
runs as fast as was observed is just at the limit, which is where they run.

``python -m ksim.calibration.power.extrapolation`` prints what is to stand in the files of the catalogue's GPUs.
"""

from collections.abc import Mapping

from attrs import evolve, frozen

from ksim.calibration.checks import named
from ksim.compute.kernels.gemm import Gemm
from ksim.cost.energy import actions, joules
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu
from ksim.specs.power import Power

#: A GEMM large enough to be at the limit, and the share of the peak that it reaches where nothing else is known.
LARGE, REACHED = Gemm(8192, 28672, 4096), 0.75
#: The GPU whose power was measured.
MEASURED = "h200"


@frozen
class Likeness:
    """What a byte of a GPU's memory takes over one of the measured GPU's, and the share of its BF16 peak that a large
    GEMM reaches."""

    memory: float
    reached: float = REACHED


#: GPUs of the catalogue whose power is extrapolated; where the numbers are from, their files say.
LIKENESSES: Mapping[str, Likeness] = {
    "a100-80g": Likeness(1.34), "h100": Likeness(1.0), "b200": Likeness(0.71, 1500 / 2250),
    "b300": Likeness(0.71, 1500 / 2250), "gb200": Likeness(0.59, 1800 / 2500), "gb300": Likeness(0.59),
    "l4": Likeness(1.48), "l40s": Likeness(1.48), "rtx-pro-6000": Likeness(1.28)}


def estimate(name: str) -> Power:
    """The power of the GPU of the catalogue called *name*, which is one of `LIKENESSES`."""
    return extrapolated(named(name), named(MEASURED).power, LIKENESSES[name])


def extrapolated(gpu: Gpu, measured: Power, likeness: Likeness) -> Power:
    """*gpu*'s power after that *measured* on another GPU; idle power, limit, links and clocks are *gpu*'s own."""
    memory = likeness.memory
    dynamic = gpu.power.limit - gpu.power.idle
    busy = measured.busy * dynamic / (measured.limit - measured.idle)
    power = evolve(gpu.power, hbm=memory * measured.hbm, write=memory * measured.write, l2=memory * measured.l2,
                   busy=busy, start=measured.start, flop={})
    return evolve(power, flop=_flop(evolve(gpu, power=power), likeness.reached))


def _flop(gpu: Gpu, reached: float) -> dict[str | DType, float | str]:
    """Joules of a FLOP in each format; FP32's where its kernels at `REACHED` of that peak are at the limit."""
    power, seconds = gpu.power, LARGE.work.flops / (reached * gpu.flops[DType.BF16])
    left = (power.limit - power.idle) * seconds - joules(actions(LARGE, seconds, gpu), power).total
    bf16 = left / LARGE.work.flops
    fp32 = (power.limit - power.idle - power.busy) / (REACHED * gpu.flops[DType.FP32])
    return {dtype: fp32 if dtype is DType.FP32 else bf16 * gpu.flops[DType.BF16] / peak
            for dtype, peak in gpu.flops.items()}


def _lines(power: Power) -> list[str]:
    costs = [f'{name} = "{1e12 * getattr(power, name):.4g} pJ/B"' for name in ("hbm", "write", "l2")]
    flops = [f'{dtype} = "{1e12 * cost:.4g} pJ/FLOP"' for dtype, cost in power.flop.items()]
    return [*costs, f'busy = "{power.busy:.4g} W"', *flops]


if __name__ == "__main__":
    for likened in LIKENESSES:
        print(f"{likened}: {', '.join(_lines(estimate(likened)))}")
