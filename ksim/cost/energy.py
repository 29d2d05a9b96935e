"""Energy: counts of actions times what each costs.  What flows all the time is added where time is known.

A GPU draws ``P = idle + sum of (what an action costs) x (how often a second)``, as activity factors of its components
would have it (EnergAIzer, arXiv 2604.20105): a component that is busy for a share of the time draws that share of its
power.  What SMs and their caches do takes the square of the voltage, and so falls with the clock; what they draw while
they do anything takes the clock besides.  Memory and links have clocks of their own.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import frozen

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.pointwise import Pointwise
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu
from ksim.specs.power import Power

#: The share of the L2 cache that tensors may fill so that a kernel which only moves memory finds them there, where the
#: kernel before it left them: what our sweep's norms, activations and rotary embeddings fit (efficiency/pointwise.py).
RESIDENT = 0.85
#: The share of a GPU's SMs that a collective's kernel keeps busy: vLLM's all-reduce has 36 thread blocks
#: (csrc/custom_all_reduce.cuh), NCCL at most 32 channels (src/include/device.h), of some 132 SMs.
COMMUNICATING = 0.25


@frozen
class Actions:
    """What a kernel does on one GPU that costs energy.

    FLOP of number format `dtype` with tiles filled up; bytes of device memory, of these `written`, and of the L2 cache;
    seconds in which SMs are `busy`; bytes `sent` to peers and through a NIC (`routed`).
    """

    flops: float = 0.0
    dtype: DType = DType.BF16
    hbm: float = 0.0
    written: float = 0.0
    l2: float = 0.0
    busy: float = 0.0
    sent: float = 0.0
    routed: float = 0.0


@frozen
class Joules:
    """Beyond idle power, at the boost clock: what SMs take for what they do (`core`), while they do anything (`busy`),
    and the `rest`, which is memory's and links'."""

    core: float
    busy: float
    rest: float

    @property
    def total(self) -> float:
        return self.core + self.busy + self.rest


def actions(kernel: Kernel, seconds: Any, gpu: Gpu) -> Actions:
    """What *kernel* does on *gpu* where it takes *seconds*; columns of many where its work is columns."""
    work = kernel.work
    moved = work.bytes
    hbm, written = moved, work.writes
    if isinstance(kernel, Pointwise):
        far = 1.0 - (moved < RESIDENT * gpu.l2)
        hbm, written = _larger(kernel.cold_bytes, far * moved), far * written
    return Actions(
        flops=_larger(work.padded, work.flops), dtype=work.dtype, hbm=hbm, written=written, l2=moved,
        busy=busy_seconds(seconds, gpu),
    )


def _larger(one: Any, other: Any) -> Any:
    """Of two numbers, or of two columns."""
    return np.maximum(one, other) if isinstance(other, np.ndarray) else max(one, other)


def busy_seconds(seconds: Any, gpu: Gpu, larger: Callable[[Any, Any], Any] = _larger) -> Any:
    """Of so many *seconds*, or of columns of them, those in which SMs do anything; *larger* is of two such."""
    return larger(0.0, seconds - gpu.power.start)


def sending(size: float, routed: float, seconds: float, share: float = COMMUNICATING) -> Actions:
    """What one rank does in a collective of *seconds*: it sends *size* bytes, *routed* of them through its NIC.

    What it sends it reads, and as much that others send it writes.  Its kernel has a *share* of the SMs.
    """
    return Actions(hbm=2 * size, written=size, l2=2 * size, busy=share * seconds, sent=size, routed=routed)


def joules(done: Actions, power: Power) -> Joules:
    """What *done* costs one GPU beyond its idle power."""
    core = done.flops * power.flop.get(done.dtype, 0.0) + done.l2 * power.l2
    rest = (done.hbm * power.hbm + done.written * power.write + done.sent * power.link
            + done.routed * power.network)
    return Joules(core, done.busy * power.busy, rest)
