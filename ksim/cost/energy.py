"""Energy: counts of actions times what each costs.  What flows all the time is added where time is known."""

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.specs.hardware import Power


def joules(kernel: Kernel | Collective, power: Power) -> float:
    """What *kernel* costs one GPU beyond its idle power."""
    if isinstance(kernel, Collective):
        return kernel.bytes * power.link
    work = kernel.work
    return work.flops * power.flop.get(work.dtype, 0.0) + work.bytes * power.hbm
