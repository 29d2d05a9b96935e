"""Energy: counts of actions times what each costs.  What flows all the time is added where time is known."""

from ksim.compute.kernels import Kernel
from ksim.specs.hardware import Power


def joules(kernel: Kernel, power: Power) -> float:
    """What *kernel* costs one GPU beyond its idle power."""
    work = kernel.work
    return work.flops * power.flop.get(work.dtype, 0.0) + work.bytes * power.hbm


def sent_joules(size: float, power: Power) -> float:
    """What it costs one GPU to send *size* bytes to its peers."""
    return size * power.link
