"""What an oracle says of many kernels, as columns."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ksim.compute.kernels.attention import Attention, AttentionLayer
from ksim.flow.bounds import BOUNDS, COMPUTE, LAUNCH, MEMORY
from ksim.oracles import Estimate, check, estimates
from ksim.oracles.efficiency.several import Several
from ksim.specs.hardware import Gpu

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]


class Singly(Protocol):
    """Prices kernels of one layer of attention: seconds, whether what it computes binds one, and whether it lies within
    what was measured."""

    def price(self, counts: Sequence[int]) -> tuple[float, bool, bool]:
        """Of the kernel with these `COUNTS`."""
        ...

    def columns(self, counts: Sequence[Floats]) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
        """Of many kernels, whose counts are columns."""
        ...


@frozen(eq=False)
class Estimates:
    """Columns of (kernels,), as in `Estimate`.

    `bound`, `launch` and `source` are places in `BOUNDS`, `launches` and `sources`.
    """

    seconds: Floats
    bound: Codes
    waves: Floats
    idle: Floats
    launch: Codes
    source: Codes
    eta: Floats
    low: Floats
    high: Floats
    extrapolated: NDArray[np.bool_]
    launches: Sequence[str]
    sources: Sequence[str]

    @classmethod
    def of(cls, found: Sequence[Estimate]) -> "Estimates":
        """Those of kernels that were asked about one by one."""
        def floats(name: str) -> Floats:
            return np.array([getattr(each, name) for each in found], dtype=np.float64)

        launches, sources = ({name: code for code, name in enumerate(dict.fromkeys(names))} for names in (
            [each.launch for each in found], [each.source for each in found]))
        return cls(floats("seconds"), np.array([BOUNDS.index(each.bound) for each in found], dtype=np.intp),
                   floats("waves"), floats("idle"), np.array([launches[each.launch] for each in found], dtype=np.intp),
                   np.array([sources[each.source] for each in found], dtype=np.intp), floats("eta"), floats("low"),
                   floats("high"), np.array([each.extrapolated for each in found], dtype=np.bool_), [*launches],
                   [*sources])

    def each(self) -> list[Estimate]:
        """One by one."""
        columns = (self.seconds, self.bound, self.waves, self.idle, self.launch, self.source, self.eta, self.low,
                   self.high, self.extrapolated)
        return [Estimate(seconds, BOUNDS[bound], waves, idle, self.launches[launch], self.sources[source], eta, low,
                         high, outside)
                for seconds, bound, waves, idle, launch, source, eta, low, high, outside
                in zip(*(column.tolist() for column in columns), strict=True)]

    def at_least(self, seconds: Floats) -> "Estimates":
        """The same, but none below what the GPU's peaks allow, which is so many *seconds* of each."""
        if (self.low >= seconds).all():
            return self
        below = ~(self.low >= seconds)
        return evolve(self, seconds=np.where(below, np.maximum(self.seconds, seconds), self.seconds),
                      low=np.where(below, seconds, self.low),
                      high=np.where(below, np.maximum(self.high, seconds), self.high))


def bound_of(launch: NDArray[np.bool_], compute: NDArray[np.bool_]) -> Codes:
    """Codes of what binds kernels: the *launch*, else what they *compute*, else memory."""
    return np.where(launch, LAUNCH, np.where(compute, COMPUTE, MEMORY))


def columnar(oracle: Any) -> bool:
    """Whether *oracle* has `columns` that say what it says one by one, which a class may have changed alone."""
    return offers(oracle, "columns")


def singly(oracle: Any, layer: AttentionLayer, gpu: Gpu) -> Singly | None:
    """What prices kernels of *layer* one by one as *oracle* does, where that has a short way to."""
    found: Singly | None = oracle.singly(layer, gpu) if offers(oracle, "singly") else None
    return found


def offers(oracle: Any, name: str) -> bool:
    """Whether *oracle* has a method of this *name* that goes with what it says, which a subclass may have changed."""
    for kind in type(oracle).__mro__:
        if name in vars(kind):
            return True
        if {"estimates", "estimate", "seconds"} & vars(kind).keys():
            return False
    return False


def columns(oracle: Any, kernel: Attention, gpu: Gpu) -> Estimates:
    """Ask *oracle*, which has `columns`, about many kernels that are one, whose counts are columns.

    Raises ConfigError for an answer that is not a positive, finite number.
    """
    answers: Estimates = oracle.columns(kernel, gpu)
    return _checked(oracle, kernel, answers)


def several(oracle: Any, asked: Sequence[Several], gpu: Gpu) -> list[Estimates]:
    """Ask *oracle* about each of *asked*, as columns where it has `several` that says what it says one by one; about
    all others kernel by kernel, in one question.

    Raises ConfigError for an answer that is not a positive, finite number.
    """
    offered = offers(oracle, "several")
    found: list[Estimates | None] = [oracle.several(each, gpu) if offered else None for each in asked]
    rest = [kernel for each, answers in zip(asked, found, strict=True) if answers is None for kernel in each.each()]
    one_by_one = iter(estimates(oracle, rest, gpu) if rest else ())
    return [_checked(oracle, each, answers) if answers is not None
            else Estimates.of(list(islice(one_by_one, len(each)))) for each, answers in zip(asked, found, strict=True)]


def _checked(oracle: Any, kernels: Attention | Several, answers: Estimates) -> Estimates:
    wrong = np.flatnonzero(~((answers.seconds > 0) & (answers.seconds < np.inf)))
    if len(wrong):
        check(oracle, kernels.at(int(wrong[0])), answers.each()[wrong[0]])
    return answers
