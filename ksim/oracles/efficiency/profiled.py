"""Estimates of kernels from a profile, many at once."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.pointwise import Pointwise
from ksim.compute.kernels.sweep import KernelSweep
from ksim.foundation.catalog import DATA
from ksim.oracles import Estimates, least_seconds
from ksim.oracles.answers import bound_codes
from ksim.oracles.compiled.attention import ProfiledAttention, heads_of
from ksim.oracles.efficiency.families import FAMILIES, Family, Shapes, family_of
from ksim.oracles.efficiency.physics import Physics
from ksim.oracles.efficiency.pointwise import uncached
from ksim.oracles.efficiency.pricing import Prices, blend, price
from ksim.oracles.efficiency.profile import Efficiency, Profile
from ksim.oracles.efficiency.stacked import Stack
from ksim.oracles.waves import Waves
from ksim.specs.hardware import Gpu

#: Where the profiles are that come with ksim.
PROFILES = DATA / "profiles"
#: How far beyond the data, as a share of its extent, a kernel counts that only a relative's efficiency speaks of.
AS_ANOTHER = 0.25


def shipped(name: str) -> Path:
    """The profile that comes with ksim for the GPU that the catalogue calls *name*, or `learned` for any."""
    return PROFILES / f"{name}.npz"


def without(name: str, architecture: str) -> str:
    """What an efficiency is called that was learned from all architectures but one."""
    return f"{name} without {architecture}"


@frozen(eq=False)
class Chosen:
    """The efficiency that prices kernels; `exact` if it was fitted to kernels of their formats.

    `tier` is the oracle that it belongs to.
    """

    name: str
    tier: str
    efficiency: Efficiency
    exact: bool

    @property
    def sources(self) -> tuple[str, str]:
        """Who says what lies within the data, and beyond them."""
        if not self.exact:
            return (f"{self.tier}, as {self.name}",) * 2
        return self.tier, f"{self.tier}, extrapolated"

    @property
    def further(self) -> float:
        """How far its kernels count as beyond the data whatever their shape."""
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
    _stacks: dict[tuple[str, ...], tuple[list[Chosen], Stack | None]] = field(factory=dict, init=False)

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
        """All of *kernels*, those of one efficiency together; but for attention, what is said of one is the same to the
        last bit whatever others are asked about.

        No estimate is below what the peaks allow, but for kernels that only move memory: what they
        touch may be in the L2 cache, as far as it fits.
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

    def compile_attention(self, layer: AttentionLayer, gpu: Gpu) -> ProfiledAttention | None:
        """What prices kernels of *layer* as `estimates` does, without intervals; None where that takes more than an
        efficiency and another beyond it."""
        names = FAMILIES["attention"].names(layer)
        chosen, fallback = self._chosen(names, gpu), self.fallback
        if chosen is None or (fallback is not None and fallback.fallback is not None):
            return None
        other = fallback._chosen(names, gpu) if fallback is not None and chosen.tier == self.tier else None
        return ProfiledAttention.of(heads_of(layer, gpu), chosen.efficiency, other.efficiency if other else None,
                                    chosen.further)

    def price(self, family: Family, names: Sequence[str], shapes: Shapes,
              gpu: Gpu) -> tuple[Chosen, Physics, Prices] | None:
        """Price kernels by their columns, all that the first of *names* fits; None where no efficiency does."""
        chosen = self._chosen(names, gpu)
        if chosen is None:
            return None
        physics = family.physics(gpu, shapes, chosen.efficiency.constants)
        prices = price(chosen.efficiency, physics, family.features, shapes, chosen.further)
        if self.fallback is not None and chosen.tier == self.tier and prices.beyond.any():
            outside = prices.beyond > 0
            other = self.fallback.price(family, names, {
                name: column[outside] if np.ndim(column) else column for name, column in shapes.items()}, gpu)
            prices = prices if other is None else prices.with_those(outside, blend(prices.of(outside), other[2]))
        return chosen, physics, prices

    def _chosen(self, names: Sequence[str], gpu: Gpu) -> Chosen | None:
        """The first of the efficiencies called *names* that the profile has, learned without *gpu*'s architecture.

        One of the very kernels that the fallback has is better than one of kernels alike.
        """
        for name in names:
            for held_back in (without(name, gpu.architecture), name):
                if held_back in self.profile:
                    own = Chosen(held_back, self.tier, self.profile[held_back], name == names[0])
                    other = None if own.exact or self.fallback is None else self.fallback._chosen(names, gpu)
                    return other if other is not None and other.exact else own
        return None if self.fallback is None else self.fallback._chosen(names, gpu)

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
        found = self._alike(family, kernels[0], family.columns(kernels, gpu), gpu) if family is not None else None
        return (_by_waves(kernels, gpu) if found is None else found).at_least(least_seconds(kernels, gpu))

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
        """Memory-bound kernels in one go, or each kind by itself where their efficiencies cannot be stacked."""
        rows, kinds = _numbered(kernels)
        found = self._in_one(family, kinds, rows, family.columns(kernels, gpu), gpu)
        if found is not None:
            return found
        if len(kinds) == 1:
            return _by_waves(kernels, gpu)
        places = [np.flatnonzero(rows == row).tolist() for row in range(len(kinds))]
        apart = [self._side_by_side(family, [kernels[i] for i in some], gpu) for some in places]
        return Estimates.joined(apart, places)

    def _in_one(self, family: Family, kinds: Sequence[Kernel], rows: NDArray[np.intp], shapes: Shapes,
                gpu: Gpu) -> Estimates | None:
        """Memory-bound kernels, each of the kind at one of *rows*; None where their efficiencies cannot be stacked."""
        chosen, stack = self._stack(family, kinds, gpu)
        if stack is None:
            found = self._alike(family, kinds[0], shapes, gpu) if len(kinds) == 1 else None
        else:
            physics, prices = stack.price(rows, shapes, gpu)
            found = _estimates(family, physics, prices, [name for each in chosen for name in each.sources], rows)
        return found and found.at_least(uncached(gpu, shapes))

    def _stack(self, family: Family, kernels: Sequence[Kernel], gpu: Gpu) -> tuple[list[Chosen], Stack | None]:
        """The efficiencies of *kernels*, each of which is of another family, and those beyond them where there are.

        Either all have one beyond or none, and what stacks with others does alone: no price depends on the company.
        """
        key = (gpu.architecture, *(kernel.family for kernel in kernels))
        if key not in self._stacks:
            chosen = self._all_chosen(family, kernels, gpu)
            others = self.fallback._all_chosen(family, kernels, gpu) if self.fallback else []
            alike = len(chosen) == len(kernels) and len(others) in (0, len(kernels))
            self._stacks[key] = chosen, _stacked(chosen, others) if alike else None
        return self._stacks[key]

    def _all_chosen(self, family: Family, kernels: Sequence[Kernel], gpu: Gpu) -> list[Chosen]:
        """The efficiency of each of *kernels* that has one."""
        found = [self._chosen(family.names(kernel), gpu) for kernel in kernels]
        return [each for each in found if each is not None]


def _stacked(chosen: Sequence[Chosen], others: Sequence[Chosen]) -> Stack | None:
    every = [*chosen, *others]
    return Stack.of([each.efficiency for each in every], [each.further for each in every], len(others))


def _numbered(kernels: Sequence[Kernel]) -> tuple[NDArray[np.intp], list[Kernel]]:
    """Of each of *kernels* the number of its kind, and a kernel of each kind."""
    kinds = {kernel.family: kernel for kernel in kernels}
    places = {name: place for place, name in enumerate(kinds)}
    return np.array([places[kernel.family] for kernel in kernels]), list(kinds.values())


def _by_waves(kernels: Sequence[Kernel], gpu: Gpu) -> Estimates:
    return Estimates.of(Waves().estimates(kernels, gpu))


def _alone(physics: Physics, within: float) -> Prices:
    """What physics says, and nobody has measured on this GPU."""
    return Prices(physics.seconds, physics.seconds * np.exp(-within), physics.seconds * np.exp(within),
                  np.ones_like(physics.seconds))


def _estimates(family: Family, physics: Physics, prices: Prices, sources: Sequence[str],
               chosen: NDArray[np.intp] | int = 0) -> Estimates:
    """What there is to say of each kernel; *sources* has two names for each efficiency: within its data, and beyond."""
    outside = prices.beyond > 0
    bound = bound_codes(physics.roofline < 0.5 * physics.seconds, physics.compute > physics.memory)
    return Estimates(
        seconds=prices.seconds, bound=bound, waves=physics.waves, idle=physics.idle, launch=physics.launch,
        source=2 * chosen + outside, roofline_ratio=prices.seconds / np.maximum(physics.roofline, 1e-12),
        low=prices.low, high=prices.high, extrapolated=outside, launches=family.launches, sources=sources)
