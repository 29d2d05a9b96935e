"""The joules of actions on a GPU whose watts nobody published, extrapolated from its data sheet and from other boards.

One GPU was measured kernel by kernel; the power of two more was fitted to the watts of their boards in whole runs.
Memory and caches take the measured GPU's joules times a known ratio for the kind of memory.  SMs take the same share of
the dynamic power (the limit less idle power) as those of the next of kin among the three, and more in grouped GEMMs of
experts where that one's do.  A FLOP takes what is left when a large GEMM, as fast as it was observed
to be, runs exactly at the limit, which is where such GEMMs run.

If a data sheet is all that is known, `of_data_sheet` takes idle power to be the catalogue's usual share of the limit,
and memory to be that of the most similar GPU of the same architecture.

``python -m ksim.calibration.power`` prints what belongs in the files of the catalogue's GPUs.
"""

from collections.abc import Mapping
from math import log

from attrs import evolve, frozen

from ksim.compute.kernels.basic import Gemm
from ksim.cost.energy import actions, joules
from ksim.foundation import catalog
from ksim.foundation.units import DType
from ksim.specs.hardware import Clocks, Gpu, Power

#: A GEMM large enough to run at the limit, and the share of the peak that it reaches if nothing else is known.
LARGE, REACHED = Gemm(8192, 28672, 4096), 0.75
#: The GPU whose power was measured, and those whose power was fitted to whole runs (benchmarks/research).
MEASURED, FITTED = "h200", ("h100", "b200")

#: Idle power over the limit: the median of the catalogue's GPUs, which range from 0.14 to 0.39.
IDLE = 0.18
#: Joules per byte on a board (Arunkumar et al., MCM-GPU, ISCA 2017), and through a NIC, as in the H200's file.
LINK, NETWORK = 80e-12, 160e-12
#: The lowest clock of most GPUs of the catalogue, in Hz.
LOWEST = 210e6
#: The relative error of joules: a guess, wider than the catalogue's because idle power is not known.
REACH = 0.4


@frozen
class Likeness:
    """Joules per byte of a GPU's `memory` over those of the measured GPU, and the share of the BF16 peak that a large
    GEMM has `reached`.  `kin` is the GPU whose SMs draw the same share.  A GPU with the die of another, but peaks
    capped below what its SMs could do at the limit, takes the joules per FLOP of `die`."""

    memory: float
    reached: float = REACHED
    die: str = ""
    kin: str = MEASURED


#: GPUs of the catalogue whose power is extrapolated; their files name the sources of the numbers.
LIKENESSES: Mapping[str, Likeness] = {
    "t4": Likeness(1.48), "a100-40g": Likeness(1.34), "a100-80g": Likeness(1.34), "a10g": Likeness(1.48),
    "h100-pcie": Likeness(1.0, kin="h100"), "h100-nvl": Likeness(1.0, kin="h100"),
    "h200-nvl": Likeness(1.0, kin="h100"), "gh200": Likeness(1.0, kin="h100"), "h800": Likeness(1.0, kin="h100"),
    "h20": Likeness(1.0, die="h100", kin="h100"), "l4": Likeness(1.48), "l40": Likeness(1.48), "l40s": Likeness(1.48),
    "rtx-4090": Likeness(1.48), "b300": Likeness(0.71, 1500 / 2250, kin="b200"),
    "gb200": Likeness(0.59, 1800 / 2500, kin="b200"), "gb300": Likeness(0.59, kin="b200"),
    "rtx-pro-6000": Likeness(1.28), "rtx-5090": Likeness(1.28), "gb10": Likeness(1.0)}


def estimate(name: str) -> Power:
    """Return the power of a GPU of the catalogue; *name* is one of `LIKENESSES`."""
    return extrapolated(catalog.value(Gpu, "gpus", name), catalog.value(Gpu, "gpus", MEASURED).power, LIKENESSES[name])


def extrapolated(gpu: Gpu, measured: Power, likeness: Likeness) -> Power:
    """Return *gpu*'s power, extrapolated from that *measured*; idle power, limit, links and clocks are *gpu*'s own."""
    memory = likeness.memory
    dynamic = gpu.power.limit - gpu.power.idle
    kin = catalog.value(Gpu, "gpus", likeness.kin).power
    sms = kin.of_sms(dynamic / (kin.limit - kin.idle))
    power = evolve(gpu.power, hbm=memory * measured.hbm, write=memory * measured.write, l2=memory * measured.l2,
                   busy=sms.busy, experts=dict(sms.experts.items()), start=measured.start, flop={})
    return evolve(power, flop=_flop(evolve(gpu, power=power), likeness))


def placeholder(limit: float | str, idle: float | str = 0.0) -> Power:
    """Return a power of which only the *limit* is known, and perhaps *idle* power."""
    return Power(idle=idle, limit=limit, flop={}, hbm=0.0, link=LINK, source="")


def of_data_sheet(gpu: Gpu) -> Power:
    """Estimate *gpu*'s power from its data sheet; only limit and idle power of `gpu.power` are used.

    Raises ValueError for a limit that memory and SMs alone would exceed.
    """
    measured, likeness = catalog.value(Gpu, "gpus", MEASURED).power, _likeness(gpu)
    idle = gpu.power.idle or IDLE * gpu.power.limit
    power = evolve(gpu.power, idle=idle, network=NETWORK, reach=REACH, basis="estimated",
                   clocks=_clocks(gpu, measured),
                   source=f"Estimate from the data sheet: idle is {IDLE:g} of the limit; memory is as of the most"
                          " similar GPU of its architecture; SMs have the H200's share; a large GEMM is at the limit.")
    try:
        return extrapolated(evolve(gpu, power=power), measured, likeness)
    except ValueError:  # nothing is left for FLOP
        raise ValueError(f"{gpu.power.limit:g} W are too little for {gpu.bandwidth / 1e9:g} GB/s of memory and"
                         f" {gpu.sms} SMs; check the TDP, or state [power] in full") from None


def _likeness(gpu: Gpu) -> Likeness:
    """Return the likeness of the GPU of the same architecture whose memory bandwidth is nearest."""
    known = {**LIKENESSES, MEASURED: Likeness(1.0), "h100": Likeness(1.0, kin="h100"),
             "b200": Likeness(0.71, 1500 / 2250, kin="b200")}
    relatives = [(peer.bandwidth, name) for name in known
                 if (peer := catalog.value(Gpu, "gpus", name)).architecture == gpu.architecture]
    return known[min(relatives, key=lambda relative: abs(log(relative[0] / gpu.bandwidth)))[1]]


def _clocks(gpu: Gpu, measured: Power) -> Clocks | None:
    """Return the measured GPU's voltages, at the same shares of the boost clock."""
    if measured.clocks is None or gpu.clock <= LOWEST:
        return None
    voltage, scale = measured.clocks.voltage, gpu.clock / measured.clocks.boost
    usual: dict[str | float, float] = {scale * clock: volts for clock, volts in voltage.items()
                                       if scale * clock > LOWEST}
    return Clocks({LOWEST: min(voltage.values()), **usual}, measured.clocks.share,
                  "Estimate: an H200's, at the same shares of the boost clock")


def _flop(gpu: Gpu, likeness: Likeness) -> dict[str | DType, float | str]:
    """Return the joules per FLOP by format; FP32 kernels at `REACHED` of their peak are taken to be at the limit."""
    power, seconds = gpu.power, LARGE.work.flops / (likeness.reached * gpu.flops[DType.BF16])
    left = (power.limit - power.idle) * seconds - joules(actions(LARGE, seconds, gpu), power).total
    die = catalog.value(Gpu, "gpus", likeness.die).power if likeness.die else None
    bf16 = die.flop[DType.BF16] if die else left / LARGE.work.flops
    fp32 = (power.limit - power.idle - power.busy) / (REACHED * gpu.flops[DType.FP32])
    return {dtype: fp32 if dtype is DType.FP32 else bf16 * gpu.flops[DType.BF16] / peak
            for dtype, peak in gpu.flops.items()}


def _lines(power: Power) -> list[str]:
    costs = [f'{name} = "{1e12 * getattr(power, name):.4g} pJ/B"' for name in ("hbm", "write", "l2")]
    flops = [f'{dtype} = "{1e12 * cost:.4g} pJ/FLOP"' for dtype, cost in power.flop.items()]
    experts = [f'experts.{dtype} = "{watts:.4g} W"' for dtype, watts in power.experts.items()]
    return [*costs, f'busy = "{power.busy:.4g} W"', *experts, *flops]


if __name__ == "__main__":
    for likened in LIKENESSES:
        print(f"{likened}: {', '.join(_lines(estimate(likened)))}")
