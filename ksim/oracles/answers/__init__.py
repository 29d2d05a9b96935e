"""The answers of oracles: an estimate of one kernel, or those of many kernels as columns."""

from collections.abc import Iterator, Sequence
from math import nan
from typing import Any, overload

import numpy as np
from attrs import evolve, field, fields, frozen
from numpy.typing import NDArray

from ksim.flow.steps import BOUNDS, COMPUTE, LAUNCH, MEMORY

__all__ = ["Codes", "Estimate", "Estimates", "Floats", "bound_codes"]

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]


@frozen
class Estimate:
    """A kernel's seconds and the reason for them.

    `bound` says what limits the kernel: compute, memory or launch.  `launch`
    names the launch that was assumed, `waves` and `idle` are its waves of thread
    blocks and the share of SMs without a block in the last one.  `source` says
    who estimated.  `roofline_ratio` is the time over the roofline's, `low` and
    `high` are the ends of the time's 90 % interval; all three are nan where they
    are not known.  `extrapolated` tells that the shape lies outside what was
    measured.
    """

    seconds: float
    bound: str
    waves: float = 0.0
    idle: float = 0.0
    launch: str = ""
    source: str = ""
    roofline_ratio: float = field(default=nan, eq=False)  # nan is no equal of itself
    low: float = field(default=nan, eq=False)
    high: float = field(default=nan, eq=False)
    extrapolated: bool = False


@frozen(eq=False, kw_only=True)
class Estimates(Sequence[Estimate]):
    """Estimates of many kernels: columns of (kernels,), named as in `Estimate`.

    `bound`, `launch` and `source` are codes: places in `BOUNDS`, `launches` and `sources`.
    """

    seconds: Floats
    bound: Codes
    waves: Floats
    idle: Floats
    launch: Codes
    source: Codes
    roofline_ratio: Floats
    low: Floats
    high: Floats
    extrapolated: NDArray[np.bool_]
    launches: Sequence[str]
    sources: Sequence[str]

    @classmethod
    def of(cls, answers: Sequence[Estimate]) -> "Estimates":
        """The columns of *answers*."""
        if isinstance(answers, Estimates):
            return answers
        launches, launch = _coded([answer.launch for answer in answers])
        sources, source = _coded([answer.source for answer in answers])
        bound = np.array([BOUNDS.index(answer.bound) for answer in answers], dtype=np.intp)
        numbers: dict[str, Any] = {name: np.array([getattr(answer, name) for answer in answers], dtype=kind)
                                   for name, kind in _NUMBERS.items()}
        return cls(bound=bound, launch=launch, source=source, launches=launches, sources=sources, **numbers)

    @classmethod
    def joined(cls, parts: Sequence["Estimates"], rows: Sequence[Sequence[int]]) -> "Estimates":
        """One table of all *parts*; the kernels of part i go to the rows `rows[i]`."""
        if len(parts) == 1 and list(rows[0]) == list(range(len(parts[0]))):
            return parts[0]
        order = np.argsort(np.concatenate([np.asarray(places, dtype=np.intp) for places in rows]))
        columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts])[order]
                                   for name in ("bound", *_NUMBERS)}
        for name, names in (("launch", "launches"), ("source", "sources")):
            starts = np.cumsum([0, *(len(getattr(part, names)) for part in parts)])
            codes = [getattr(part, name) + start for part, start in zip(parts, starts, strict=False)]
            columns[name] = np.concatenate(codes)[order]
            columns[names] = [word for part in parts for word in getattr(part, names)]
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.seconds)

    @overload
    def __getitem__(self, row: int) -> Estimate: ...

    @overload
    def __getitem__(self, row: slice) -> list[Estimate]: ...

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [*self][row]
        numbers: dict[str, Any] = {name: getattr(self, name)[row].item() for name in _NUMBERS}
        return Estimate(bound=BOUNDS[self.bound[row]], launch=self.launches[self.launch[row]],
                        source=self.sources[self.source[row]], **numbers)

    def __iter__(self) -> Iterator[Estimate]:
        columns = (self.seconds, self.bound, self.waves, self.idle, self.launch, self.source, self.roofline_ratio,
                   self.low, self.high, self.extrapolated)
        for seconds, bound, waves, idle, launch, source, *rest in zip(
                *(column.tolist() for column in columns), strict=True):
            yield Estimate(seconds, BOUNDS[bound], waves, idle, self.launches[launch], self.sources[source], *rest)

    def at_least(self, seconds: Floats) -> "Estimates":
        """These estimates with times and the ends of intervals raised to at least *seconds* of each kernel."""
        if (self.low >= seconds).all():
            return self
        below = ~(self.low >= seconds)
        return evolve(self, seconds=np.where(below, np.maximum(self.seconds, seconds), self.seconds),
                      low=np.where(below, seconds, self.low),
                      high=np.where(below, np.maximum(self.high, seconds), self.high))


#: Columns that are no codes, by name, and of what kind they are.
_NUMBERS = {column.name: np.bool_ if column.name == "extrapolated" else np.float64 for column in fields(Estimate)
            if column.name not in ("bound", "launch", "source")}


def bound_codes(launch: NDArray[np.bool_], compute: NDArray[np.bool_]) -> Codes:
    """Codes of what limits kernels: the *launch*, else *compute*, else memory."""
    return np.where(launch, LAUNCH, np.where(compute, COMPUTE, MEMORY))


def _coded(words: Sequence[str]) -> tuple[list[str], Codes]:
    """The different *words*, and the place of each among them."""
    places = {word: code for code, word in enumerate(dict.fromkeys(words))}
    return [*places], np.array([places[word] for word in words], dtype=np.intp)
