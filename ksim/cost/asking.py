"""Until oracles price sweeps: ask them as they can be asked."""

from typing import Any

from ksim.compute.kernels.attention import Attention
from ksim.compute.kernels.sweep import KernelSweep
from ksim.oracles import estimates
from ksim.oracles.efficiency.answers import Estimates, columnar, columns, offers, several
from ksim.oracles.efficiency.several import Several

__all__ = ["Estimates", "ask"]


def ask(oracle: Any, sweep: KernelSweep, gpu: Any) -> Estimates:
    if isinstance(sweep.kernel, Attention) and columnar(oracle):
        found = columns(oracle, sweep.kernel, gpu)
    elif not isinstance(sweep.kernel, Attention) and offers(oracle, "several"):
        (found,) = several(oracle, [Several(sweep.kernel, [*sweep], 1)], gpu)
    else:
        found = Estimates.of(estimates(oracle, [*sweep], gpu))
    return found
