"""How long does a kernel take?  Latency oracles, each in a file of its own.

To add one, add a file with an attrs class that has the method of `LatencyOracle`:
`estimates(kernels, gpu)`, with an `Estimate` for each kernel.  One that lies
elsewhere is named ``package.module:Class``; its fields are set by the scenario's
options.

* The kernels are a list, or a `KernelSweep`: kernels of one class whose numbers
  are columns.  An oracle may loop over either.  The answer is a list too, or
  columns: `Estimates`.
* Attention has another shape at every step.  An oracle that offers
  `compile_attention` prepares one layer and then prices its kernels in
  microseconds; without it, it is asked for `estimates`.
* A class with no more than `estimate(kernel, gpu)`, or `seconds(kernel, gpu)`,
  works as well.  It is asked kernel by kernel.

Oracles compose: one may hold another, to scale it, to add noise to it or to fall
back on it.  `tests/laws` holds every oracle to: positive times, none below what the
hardware allows, and answers that depend on the question alone.
"""

from collections.abc import Sequence
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ksim.compute.graph import KernelSweep
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.flow.steps import BOUNDS
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.oracles.answers import Estimate, Estimates, Floats
from ksim.specs.hardware import Gpu

if TYPE_CHECKING:
    from ksim.compute.kernels.mla import LatentLayer

__all__ = ["CompiledAttention", "Estimate", "Estimates", "LatencyOracle", "adapted", "bounds", "check",
           "check_seconds", "compile_attention", "estimate", "estimates", "least_seconds", "peak"]


class CompiledAttention(Protocol):
    """Prices kernels of one layer of attention by what they count: `ksim.compute.kernels.attention.COUNTS`, in order.

    For each kernel it says the seconds, whether compute limits them, and whether kernels of its formats were measured.
    """

    def price(self, counts: Sequence[int]) -> tuple[float, bool, bool]:
        """Price one kernel."""
        ...

    def columns(self, counts: Sequence[Floats]) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
        """Price many kernels, whose counts are columns."""
        ...


class LatencyOracle(Protocol):
    """May also have ``compile_attention(layer, gpu)``: see the function of that name."""

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> Sequence[Estimate]:
        """The time from start to finish of each of *kernels*, alone on *gpu* and launched by a CUDA graph."""
        ...


@frozen
class AdaptedOracle:
    """Asks an `oracle` that has no more than `estimate` or `seconds`, which is its *method*."""

    oracle: Any
    method: str = field(repr=False)

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> list[Estimate]:
        """Ask kernel by kernel; where the answer is but seconds, the roofline says what limits the kernel."""
        if self.method == "estimate":
            return [self.oracle.estimate(kernel, gpu) for kernel in kernels]
        return [self._by_seconds(kernel, gpu) for kernel in kernels]

    def _by_seconds(self, kernel: Kernel, gpu: Gpu) -> Estimate:
        compute, memory = bounds(kernel, gpu)
        return Estimate(self.oracle.seconds(kernel, gpu), "compute" if compute > memory else "memory",
                        source=_name(self.oracle))


def adapted(oracle: Any) -> LatencyOracle:
    """*oracle* itself, or what asks it kernel by kernel where it has no `estimates`.

    Where a class inherits one method and defines another, the class's own counts.  Raises ConfigError for an oracle
    that has none of the three.
    """
    method = _method(oracle)
    if not method:
        raise ConfigError(f"oracle {_name(oracle)}", "has neither seconds(kernel, gpu) nor estimate(kernel, gpu)")
    adapter: LatencyOracle = oracle if method == "estimates" else AdaptedOracle(oracle, method)
    return adapter


def _method(oracle: Any) -> str:
    """The method that answers for *oracle*: the first that its class defines, or else the class above it."""
    methods = ("estimates", "estimate", "seconds")
    own = (name for kind in type(oracle).__mro__ for name in methods if name in vars(kind))
    return next(own, "") or next((name for name in methods if hasattr(oracle, name)), "")


def estimates(oracle: Any, kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
    """Ask *oracle* about *kernels*, a list or a `KernelSweep`.

    Raises ConfigError for an oracle that cannot be asked, or an answer that is no positive, finite time.
    """
    return Estimates.of(_answers(oracle, kernels, gpu))


def estimate(oracle: Any, kernel: Kernel, gpu: Gpu) -> Estimate:
    """Ask *oracle* about one *kernel*, as `estimates` does."""
    return _answers(oracle, [kernel], gpu)[0]


def compile_attention(oracle: Any, layer: "AttentionLayer | LatentLayer", gpu: Gpu) -> CompiledAttention | None:
    """Compile *layer* for *oracle*; None where the oracle does not offer that for this layer."""
    method = getattr(adapted(oracle), "compile_attention", None)
    compiled: CompiledAttention | None = method(layer, gpu) if method is not None else None
    return compiled


def _answers(oracle: Any, kernels: Sequence[Kernel], gpu: Gpu) -> Sequence[Estimate]:
    answers = adapted(oracle).estimates(kernels, gpu)
    if len(answers) != len(kernels):
        raise ConfigError(f"oracle {_name(oracle)}", f"gives {len(answers)} estimates of {len(kernels)} kernels")
    if isinstance(answers, Estimates):
        for row in np.flatnonzero(~((answers.seconds > 0) & (answers.seconds < inf)))[:1].tolist():
            check(oracle, kernels[row], answers[row])
        return answers
    for row, answer in enumerate(answers):
        if not (isinstance(answer, Estimate) and type(answer.seconds) is float and 0 < answer.seconds < inf
                and answer.bound in BOUNDS):
            check(oracle, kernels[row], answer)
    return answers


def check(oracle: Any, kernel: Kernel, answer: Any) -> None:
    """Raise ConfigError where *answer* is no estimate of a positive, finite time."""
    if not isinstance(answer, Estimate):
        raise ConfigError(f"oracle {_name(oracle)}", f"estimates {answer!r}, which is no ksim.oracles.Estimate")
    check_seconds(oracle, kernel, answer.seconds)
    if answer.bound not in BOUNDS:
        raise ConfigError(f"oracle {_name(oracle)}", f"says that {answer.bound!r} limits {kernel.family} {kernel};"
                                                     f" expected one of {', '.join(BOUNDS[:3])}")


def check_seconds(oracle: Any, kernel: Kernel, seconds: Any) -> None:
    """Raise ConfigError where the *seconds* that *oracle* says of *kernel* are no positive, finite number."""
    if not isinstance(seconds, Real) or not 0 < float(seconds) < inf:
        raise ConfigError(f"oracle {_name(oracle)}", f"says {seconds} s for {kernel.family} {kernel};"
                                                     f" expected a positive number")


def _name(oracle: Any) -> str:
    """The name of *oracle* in messages."""
    return type(oracle.oracle if isinstance(oracle, AdaptedOracle) else oracle).__name__


def bounds(kernel: Kernel, gpu: Gpu) -> tuple[float, float]:
    """Seconds that *gpu*'s peaks allow for *kernel*'s arithmetic, and for its traffic."""
    work = kernel.work
    return work.flops / peak(gpu, work.dtype), work.bytes / gpu.bandwidth


def least_seconds(kernels: Sequence[Kernel], gpu: Gpu) -> Floats:
    """Seconds that *gpu*'s peaks allow for each of *kernels*: the larger of the two `bounds`."""
    if isinstance(kernels, KernelSweep):
        least: Floats = np.maximum(*bounds(kernels.kernel, gpu))
        return least
    return np.array([max(bounds(kernel, gpu)) for kernel in kernels])


def peak(gpu: Gpu, dtype: DType) -> float:
    """FLOP/s of *gpu* in a number format; raises ConfigError where it has none."""
    try:
        return gpu.flops[dtype.element]
    except KeyError:
        formats = ", ".join(str(known) for known in gpu.flops)
        raise ConfigError(f"gpu {gpu.name}", f"computes no {dtype.element} (it has {formats}); choose another"
                                             f" quantization, such as 'fp8_w8a16' for weights alone") from None
