"""Latency oracles: how long one kernel takes on one GPU.

To add one, add a file with an attrs class that has `seconds`, or `estimate`
where there is more to say than a number, or `estimates` where many kernels at
once are cheaper than one by one, and `columns` where those of many steps are
cheaper as columns (`ksim.oracles.efficiency.answers`).  One from elsewhere is named
``package.module:Class``; its fields are set by the scenario's options.  Oracles
compose: one may hold another to scale, to add noise to, or to fall back on.
`tests/laws` holds every oracle to: positive, and no time below the hardware's bound.
"""

from collections.abc import Sequence
from math import inf, nan
from numbers import Real
from typing import Any, Protocol

from attrs import field, frozen

from ksim.compute.kernels import Kernel
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu


@frozen
class Estimate:
    """A kernel's seconds and the reason for them.

    `bound` is compute, memory or launch; `waves` and `idle` are of the launch
    assumed, which `launch` names; `source` says who estimated.  `eta` is the
    time over the roofline's, `low` and `high` the ends of its 90 % interval, all
    nan where they are not known; `extrapolated` tells that the shape lies
    outside what was measured.
    """

    seconds: float
    bound: str
    waves: float = 0.0
    idle: float = 0.0
    launch: str = ""
    source: str = ""
    eta: float = field(default=nan, eq=False)  # nan is no equal of itself
    low: float = field(default=nan, eq=False)
    high: float = field(default=nan, eq=False)
    extrapolated: bool = False


class LatencyOracle(Protocol):
    def seconds(self, kernel: Kernel, gpu: Gpu) -> float:
        """The time from start to finish of *kernel*, alone on *gpu* and launched by a CUDA graph."""
        ...


def estimate(oracle: Any, kernel: Kernel, gpu: Gpu) -> Estimate:
    """Ask *oracle* about one *kernel*, as `estimates` does."""
    return estimates(oracle, [kernel], gpu)[0]


def estimates(oracle: Any, kernels: Sequence[Kernel], gpu: Gpu) -> list[Estimate]:
    """Ask *oracle* about *kernels*; one that only gives seconds is credited with the roofline's bound.

    Raises ConfigError for an oracle that cannot be asked, or an answer that is not a positive, finite number.
    """
    if hasattr(oracle, "estimates"):
        answers: list[Estimate] = oracle.estimates(kernels, gpu)
    else:
        answers = [_answer(oracle, kernel, gpu) for kernel in kernels]
    for kernel, answer in zip(kernels, answers, strict=True):
        check(oracle, kernel, answer)
    return answers


def _answer(oracle: Any, kernel: Kernel, gpu: Gpu) -> Estimate:
    name = type(oracle).__name__
    if hasattr(oracle, "estimate"):
        answer: Estimate = oracle.estimate(kernel, gpu)
    elif hasattr(oracle, "seconds"):
        compute, memory = bounds(kernel, gpu)
        answer = Estimate(oracle.seconds(kernel, gpu), "compute" if compute > memory else "memory", source=name)
    else:
        raise ConfigError(f"oracle {name}", "has neither seconds(kernel, gpu) nor estimate(kernel, gpu)")
    return answer


def check(oracle: Any, kernel: Kernel, answer: Any) -> None:
    """Raise ConfigError where *answer* is no estimate of a positive, finite time."""
    name = type(oracle).__name__
    if not isinstance(answer, Estimate):
        raise ConfigError(f"oracle {name}", f"estimates {answer!r}, which is no ksim.oracles.Estimate")
    if isinstance(answer.seconds, float) and 0 < answer.seconds < inf:
        return  # what an abstract class would take longer to say
    if not isinstance(answer.seconds, Real) or not 0 < answer.seconds < inf:
        raise ConfigError(f"oracle {name}", f"says {answer.seconds} s for {kernel.family} {kernel};"
                                            f" expected a positive number")


def bounds(kernel: Kernel, gpu: Gpu) -> tuple[float, float]:
    """Seconds that *gpu*'s peaks allow for *kernel*'s arithmetic, and for its traffic."""
    work = kernel.work
    return work.flops / peak(gpu, work.dtype), work.bytes / gpu.bandwidth


def peak(gpu: Gpu, dtype: DType) -> float:
    """FLOP/s of *gpu* in a number format; raises ConfigError where it has none."""
    try:
        return gpu.flops[dtype.element]
    except KeyError:
        formats = ", ".join(str(known) for known in gpu.flops)
        raise ConfigError(f"gpu {gpu.name}", f"computes no {dtype.element} (it has {formats}); choose another"
                                             f" quantization, such as 'fp8_w8a16' for weights alone") from None
