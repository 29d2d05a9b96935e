"""Profiles, which are files of fitted efficiencies of kernel families, and the prices of kernels by them.

A profile is one .npz file: a JSON `header` that says what it is and where it comes from, and the arrays of its models,
which are read when they are asked for.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, evolve, field, fields, frozen
from numpy.typing import NDArray

from ksim.compute.graph import KernelSweep
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.basic import Pointwise
from ksim.foundation import catalog
from ksim.foundation.errors import DataError
from ksim.foundation.files import DAMAGED, FileVersion, arrays, regular_file, version
from ksim.oracles import CompiledAttention, Estimate, Estimates, least_seconds
from ksim.oracles.answers import bound_codes
from ksim.oracles.compiled.predictors import ProfiledAttention
from ksim.oracles.efficiency.families import Family, Shapes, family, family_of
from ksim.oracles.efficiency.models import KINDS, Efficiency, Physics, Prices, Region, Spread, blend
from ksim.oracles.efficiency.pointwise import Stack, uncached
from ksim.specs.hardware import Gpu

if TYPE_CHECKING:
    from ksim.compute.kernels.mla import LatentLayer

__all__ = ["PROFILES", "FORMAT", "ChosenEfficiency", "Profile", "ProfileOracle", "Profiled", "save", "shipped",
           "without"]


#: Where the profiles are that come with ksim.
PROFILES = catalog.DATA / "profiles"
#: Counts up whenever old files would be read wrongly.
FORMAT = 1
#: The attributes of an efficiency that the header has; the others are arrays.
_IN_HEADER = ("constants", "inputs", "place", "rows", "error", "source")
#: The classes of parts, by the names that profiles have for them.
_PARTS: Mapping[str, type] = {**KINDS, "Region": Region, "Spread": Spread}
_NAMES = {kind: name for name, kind in _PARTS.items()}


def shipped(name: str) -> Path:
    """The profile that comes with ksim for the GPU that the catalogue calls *name*, or `learned` for any."""
    return PROFILES / f"{name}.npz"


def without(name: str, architecture: str) -> str:
    """The name of the efficiency *name* as it was learned from all architectures but *architecture*."""
    return f"{name} without {architecture}"


@define(eq=False)
class Profile:
    """The efficiencies in a file, by name such as ``gemm/bf16``; `gpu` is whose they are, or empty for any."""

    path: Path
    header: Mapping[str, Any]
    _arrays: Mapping[str, NDArray[np.generic]] = field(repr=False)
    _read: dict[str, Efficiency] = field(factory=dict, init=False)

    @classmethod
    def load(cls, path: Path) -> "Profile":
        """Open a profile, or return it as it was opened before.

        Raises DataError for a file that is none, or that another version's format made.
        """
        try:
            return cls._opened(regular_file(path), version(path))
        except OSError as error:
            raise DataError(str(path), error.strerror or str(error)) from None

    @classmethod
    @lru_cache(maxsize=32)
    def _opened(cls, path: Path, _: FileVersion) -> "Profile":
        try:
            found = arrays(path)
            header = json.loads(str(found["header"]))
        except DAMAGED:
            raise DataError(str(path), f"is no profile; `ksim gpu calibrate SWEEP -o {path.name}` makes one") from None
        if header.get("format") != FORMAT:
            raise DataError(str(path), f"has format {header.get('format')}, and this ksim reads format {FORMAT};"
                                       f" rebuild it with"
                                       f" `{header.get('command', f'ksim gpu calibrate SWEEP -o {path}')}`")
        return cls(path, header, found)

    @property
    def gpu(self) -> str:
        return str(self.header["gpu"])

    def __contains__(self, name: object) -> bool:
        return name in self.header["entries"]

    def __iter__(self) -> Iterator[str]:
        return iter(self.header["entries"])

    def __getitem__(self, name: str) -> Efficiency:
        if name not in self._read:
            saved = self.header["entries"][name]
            parts = {part: self._part(f"{name}/{part}") for part in ("model", "region", "spread")}
            self._read[name] = Efficiency(
                constants=saved["constants"], inputs=tuple(saved["inputs"]), place=tuple(saved["place"]), **parts,
                rows=saved["rows"], error=saved["error"], source=saved["source"])
        return self._read[name]

    def _part(self, name: str) -> Any:
        try:
            return _built(self._arrays, name)
        except DAMAGED as error:
            raise DataError(str(self.path), f"is damaged, or of another version of ksim: {name}: {error};"
                                            f" rebuild it with `{self.header['command']}`") from None


def save(path: Path, gpu: str, command: str, entries: Mapping[str, Efficiency], **more: Any) -> None:
    """Write a profile; `command` is what rebuilds it, `more` goes into the header as it is."""
    header = {"format": FORMAT, "gpu": gpu, "command": command, **more, "entries": {
        name: {attribute: getattr(entry, attribute) for attribute in _IN_HEADER} for name, entry in entries.items()}}
    stored: dict[str, NDArray[np.generic]] = {"header": np.array(json.dumps(header))}
    for name, entry in entries.items():
        for part in ("model", "region", "spread"):
            _store(getattr(entry, part), f"{name}/{part}", stored)
    with path.open("wb") as file:
        np.savez_compressed(file, **stored)  # type: ignore[arg-type]


def _store(part: Any, name: str, arrays: dict[str, NDArray[np.generic]]) -> None:
    """Name the arrays that *part* is made of, in single precision."""
    arrays[f"{name}/kind"] = np.array(_NAMES[type(part)])
    for attribute in fields(type(part)):
        value, place = getattr(part, attribute.name), f"{name}/{attribute.name}"
        if isinstance(value, np.ndarray):
            arrays[place] = value.astype(np.float32)
        else:
            _store(value, place, arrays)


def _built(arrays: Mapping[str, NDArray[np.generic]], name: str) -> Any:
    """The reverse of `_store`."""
    kind = _PARTS[str(arrays[f"{name}/kind"])]
    places = {attribute.name: f"{name}/{attribute.name}" for attribute in fields(kind)}
    return kind(**{member: arrays[place] if place in arrays else _built(arrays, place)
                   for member, place in places.items()})


#: How far beyond the data, as a share of its extent, kernels count that are priced by the efficiency of similar ones.
AS_ANOTHER = 0.25


@frozen(eq=False)
class ChosenEfficiency:
    """The efficiency that prices kernels; `exact` if it was fitted to kernels of their formats.

    `tier` is the oracle that it belongs to.
    """

    name: str
    tier: str
    efficiency: Efficiency
    exact: bool

    @property
    def sources(self) -> tuple[str, str]:
        """The names of this efficiency as a source of estimates: for kernels within its data, and beyond them."""
        alike = f"{self.tier}, as {self.name}"
        return (self.tier, f"{self.tier}, extrapolated") if self.exact else (alike, alike)

    @property
    def further(self) -> float:
        """The distance beyond the data that is added for all kernels: 0 if the efficiency is that of their formats."""
        return 0.0 if self.exact else AS_ANOTHER


@define(eq=False)
class Profiled:
    """Prices kernels by a profile; beyond what it was fitted to more and more by `fallback`, if there is one.

    Estimates are credited to `tier`.  Kernels of which neither knows anything are priced by their
    family's physics alone, as extrapolated, or left to the `waves` oracle where that has no constants of its own.
    """

    profile: Profile
    tier: str
    fallback: "Profiled | None" = None
    _choices: dict[tuple[str, tuple[str, ...]], ChosenEfficiency | None] = field(factory=dict, init=False)
    _stacks: dict[tuple[str, ...], tuple[list[ChosenEfficiency], Stack | None]] = field(factory=dict, init=False)

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
        """Estimate all of *kernels*, those of one efficiency together.

        Except for attention, the estimate of a kernel is the same to the last bit whatever others are asked about.

        No estimate is below what the peaks allow, but for kernels that only move memory: their data may be in the L2
        cache, as far as it fits.
        """
        if isinstance(kernels, KernelSweep) and (answers := self._sweep(kernels, gpu)) is not None:
            return answers
        groups: dict[object, list[int]] = {}
        for i, kernel in enumerate(kernels):
            family = family_of(kernel)
            group = Pointwise if isinstance(kernel, Pointwise) else family and family.names(kernel)
            groups.setdefault(group, []).append(i)
        parts = [self._group([kernels[i] for i in places], gpu) for places in groups.values()]
        return Estimates.joined(parts, list(groups.values())) if parts else Estimates.of([])

    def compile_attention(self, layer: "AttentionLayer | LatentLayer", gpu: Gpu) -> ProfiledAttention | None:
        """Compile *layer* to price its kernels as `estimates` does, without intervals.

        Returns None where that takes more than one efficiency and one beyond it.
        """
        names = family(layer.family).names(layer)
        chosen, fallback = self._chosen(names, gpu), self.fallback
        if chosen is None or (fallback is not None and fallback.fallback is not None):
            return None
        other = fallback._chosen(names, gpu) if fallback is not None and chosen.tier == self.tier else None
        return ProfiledAttention.of(layer, gpu, chosen.efficiency, other.efficiency if other else None, chosen.further)

    def price(self, family: Family, names: tuple[str, ...], shapes: Shapes,
              gpu: Gpu) -> tuple[ChosenEfficiency, Physics, Prices] | None:
        """Price kernels by their columns, all that the first of *names* fits; None where no efficiency does."""
        chosen = self._chosen(names, gpu)
        if chosen is None:
            return None
        physics = family.physics(gpu, shapes, chosen.efficiency.constants)
        prices = chosen.efficiency.price(physics, family.features, shapes, chosen.further)
        if self.fallback is not None and chosen.tier == self.tier and prices.beyond.any():
            outside = prices.beyond > 0
            other = self.fallback.price(family, names, {
                name: column[outside] if np.ndim(column) else column for name, column in shapes.items()}, gpu)
            prices = prices if other is None else prices.with_those(outside, blend(prices.of(outside), other[2]))
        return chosen, physics, prices

    def _chosen(self, names: tuple[str, ...], gpu: Gpu) -> ChosenEfficiency | None:
        """The first of the efficiencies called *names* that the profile has, learned without *gpu*'s architecture.

        An exact one of the fallback is preferred to one of kernels alike.
        """
        key = gpu.architecture, names
        if key not in self._choices:
            own = self._own(names, gpu)
            other = self.fallback._chosen(names, gpu) if self.fallback and not (own and own.exact) else None
            self._choices[key] = other if own is None or (other is not None and other.exact) else own
        return self._choices[key]

    def _own(self, names: tuple[str, ...], gpu: Gpu) -> ChosenEfficiency | None:
        """The first of the profile itself."""
        candidates = ((name, entry) for name in names for entry in (without(name, gpu.architecture), name))
        return next((ChosenEfficiency(entry, self.tier, self.profile[entry], name == names[0])
                     for name, entry in candidates if entry in self.profile), None)

    def _sweep(self, sweep: KernelSweep, gpu: Gpu) -> Estimates | None:
        """Kernels whose numbers are columns; None for those of a family that has no columns of such, or is unknown."""
        family, kernel = family_of(sweep.kernel), sweep.kernel
        if family is None or family.sweep is None:
            return None
        shapes = family.sweep(kernel, gpu)
        if isinstance(kernel, Pointwise):
            rows, kinds = _numbered([evolve(kernel, family=name) for name in sweep.families])
            return self._in_one(family, kinds, sweep.spread(rows), shapes, gpu)
        answers = self._alike(family, kernel, shapes, gpu)
        return answers and answers.at_least(least_seconds(sweep, gpu))

    def _group(self, kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
        """Kernels of one efficiency, or memory-bound ones of several."""
        family = family_of(kernels[0])
        if family is not None and isinstance(kernels[0], Pointwise):
            return self._side_by_side(family, kernels, gpu)
        answers = self._alike(family, kernels[0], family.columns(kernels, gpu), gpu) if family is not None else None
        return (answers or _by_waves(kernels, gpu)).at_least(least_seconds(kernels, gpu))

    def _alike(self, family: Family, kernel: Kernel, shapes: Shapes, gpu: Gpu) -> Estimates | None:
        """Kernels of one efficiency, such as *kernel*, by their columns; None where nothing is known of them."""
        priced = self.price(family, family.names(kernel), shapes, gpu)
        if priced is not None:
            chosen, physics, prices = priced
            return _estimates(family, physics, prices, chosen.sources)
        if family.within is not None:
            physics = family.physics(gpu, shapes, {})
            alone = f"{self.tier}, by physics alone"
            return _estimates(family, physics, _alone(physics, family.within(gpu)), (alone, alone))
        return None

    def _side_by_side(self, family: Family, kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
        """Memory-bound kernels in one go, or apart those whose efficiencies cannot be stacked."""
        rows, kinds = _numbered(kernels)
        answers = self._in_one(family, kinds, rows, family.columns(kernels, gpu), gpu)
        if answers is not None:
            return answers
        if len(kinds) == 1:
            return _by_waves(kernels, gpu)
        company: dict[int, list[int]] = {}
        numbers = [*self._company(family, kinds, gpu)]
        for place, row in enumerate(rows.tolist()):
            company.setdefault(numbers[row], []).append(place)
        places = [*company.values()]
        apart = [self._side_by_side(family, [kernels[i] for i in some], gpu) for some in places]
        return Estimates.joined(apart, places)

    def _company(self, family: Family, kinds: Sequence[Kernel], gpu: Gpu) -> Iterator[int]:
        """For each of *kinds* a number: that of those which stack together, or its own."""
        together: dict[object, int] = {}
        for number, kind in enumerate(kinds):
            stack = self._stack(family, [kind], gpu)[1]
            yield together.setdefault((stack.place, stack.others > 0) if stack is not None else number, number)

    def _in_one(self, family: Family, kinds: Sequence[Kernel], rows: NDArray[np.intp], shapes: Shapes,
                gpu: Gpu) -> Estimates | None:
        """Memory-bound kernels, each of the kind at one of *rows*; None where their efficiencies cannot be stacked."""
        chosen, stack = self._stack(family, kinds, gpu)
        if stack is None:
            answers = self._alike(family, kinds[0], shapes, gpu) if len(kinds) == 1 else None
        else:
            physics, prices = stack.price(rows, shapes, gpu)
            answers = _estimates(family, physics, prices, [name for kind in chosen for name in kind.sources], rows)
        return answers and answers.at_least(uncached(gpu, shapes))

    def _stack(self, family: Family, kernels: Sequence[Kernel],
               gpu: Gpu) -> tuple[list[ChosenEfficiency], Stack | None]:
        """The efficiencies of *kernels*, each of another family, stacked with those of the fallback beyond them.

        Either all have one beyond or none, and what stacks with others does alone: no price depends on the company.
        """
        key = (gpu.architecture, *(kernel.family for kernel in kernels))
        if key not in self._stacks:
            chosen = self._all_chosen(family, kernels, gpu)
            others = self.fallback._all_chosen(family, kernels, gpu) if self.fallback else []
            alike = len(chosen) == len(kernels) and len(others) in (0, len(kernels))
            both = [*chosen, *others]
            self._stacks[key] = chosen, Stack.of([kind.efficiency for kind in both], [kind.further for kind in both],
                                                 len(others)) if alike else None
        return self._stacks[key]

    def _all_chosen(self, family: Family, kernels: Sequence[Kernel], gpu: Gpu) -> list[ChosenEfficiency]:
        """The efficiency of each of *kernels* that has one."""
        return [chosen for kernel in kernels if (chosen := self._chosen(family.names(kernel), gpu)) is not None]


def _by_waves(kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
    """The answers of the `waves` oracle, which is loaded only where a profile knows nothing of a kernel."""
    return Estimates.of(catalog.find("oracles", "waves")().estimates(kernels, gpu))


def _numbered(kernels: Sequence[Kernel]) -> tuple[NDArray[np.intp], list[Kernel]]:
    """The number of the kind of each of *kernels*, and a kernel of each kind."""
    kinds = {kernel.family: kernel for kernel in kernels}
    places = {name: index for index, name in enumerate(kinds)}
    return np.array([places[kernel.family] for kernel in kernels]), list(kinds.values())


def _alone(physics: Physics, within: float) -> Prices:
    """The prices by physics alone, for kernels that nobody has measured on this GPU."""
    return Prices(physics.seconds, physics.seconds * np.exp(-within), physics.seconds * np.exp(within),
                  np.ones_like(physics.seconds))


def _estimates(family: Family, physics: Physics, prices: Prices, sources: Sequence[str],
               chosen: NDArray[np.intp] | int = 0) -> Estimates:
    """The estimates of kernels; *sources* has two names for each efficiency: within its data, and beyond."""
    outside, roofline = prices.beyond > 0, np.maximum(physics.compute, physics.memory)
    bound = bound_codes(roofline < 0.5 * physics.seconds, physics.compute > physics.memory)
    return Estimates(
        seconds=prices.seconds, bound=bound, waves=physics.waves, idle=physics.idle, launch=physics.launch,
        source=2 * chosen + outside, roofline_ratio=prices.seconds / np.maximum(roofline, 1e-12),
        low=prices.low, high=prices.high, extrapolated=outside, launches=family.launches, sources=sources)


class ProfileOracle(ABC):
    """Says what `prices` says of kernels on a GPU."""

    @abstractmethod
    def prices(self, gpu: Gpu) -> Profiled:
        """The profile that prices kernels on *gpu*; raises ConfigError where there is none."""

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
        """Price all of *kernels* at once, which is faster than one by one."""
        return self.prices(gpu).estimates(kernels, gpu)

    def estimate(self, kernel: Kernel, gpu: Gpu) -> Estimate:
        return self.estimates([kernel], gpu)[0]

    def seconds(self, kernel: Kernel, gpu: Gpu) -> float:
        return self.estimate(kernel, gpu).seconds

    def compile_attention(self, layer: "AttentionLayer | LatentLayer", gpu: Gpu) -> CompiledAttention | None:
        """Compile *layer*; None in a subclass with `estimates` of its own, which a compiled formula would bypass."""
        if type(self).estimates is not ProfileOracle.estimates:
            return None
        return self.prices(gpu).compile_attention(layer, gpu)
