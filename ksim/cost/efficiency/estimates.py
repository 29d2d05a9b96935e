"""Estimates of kernels from a profile, many at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, evolve, field, frozen

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.pointwise import Pointwise
from ksim.cost.efficiency.families import Family, Shapes, family_of
from ksim.cost.efficiency.physics import Physics
from ksim.cost.efficiency.pricing import Prices, blend, price
from ksim.cost.efficiency.profile import Efficiency, Profile
from ksim.cost.efficiency.stacked import Stack
from ksim.cost.oracles import Estimate, bounds
from ksim.cost.oracles.waves import Waves
from ksim.foundation.catalog import DATA
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

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> list[Estimate]:
        """All of *kernels*, those of one efficiency together.

        No estimate is below what the peaks allow, but for kernels that only move memory: what they
        touch may be in the L2 cache.
        """
        groups: dict[object, list[int]] = {}
        for i, kernel in enumerate(kernels):
            family = family_of(kernel)
            group = Pointwise if isinstance(kernel, Pointwise) else family and family.names(kernel)
            groups.setdefault(group, []).append(i)
        found: dict[int, Estimate] = {}
        for places in groups.values():
            found.update(zip(places, self._group([kernels[i] for i in places], gpu), strict=True))
        return [found[i] if isinstance(kernel, Pointwise) else _bounded(found[i], kernel, gpu)
                for i, kernel in enumerate(kernels)]

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
            other = self.fallback.price(family, names, {name: column[outside] for name, column in shapes.items()}, gpu)
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

    def _group(self, kernels: Sequence[Kernel], gpu: Gpu) -> list[Estimate]:
        """Kernels of one efficiency, or memory-bound ones of several."""
        family = family_of(kernels[0])
        if family is not None:
            shapes = family.columns(kernels, gpu)
            if len(kernels) > 1 and isinstance(kernels[0], Pointwise):
                return self._side_by_side(family, kernels, shapes, gpu)
            priced = self.price(family, family.names(kernels[0]), shapes, gpu)
            if priced is not None:
                chosen, physics, prices = priced
                return [_said(family, chosen, row) for row in _rows(physics, prices)]
            if family.within is not None:
                physics = family.physics(gpu, shapes, {})
                return [_estimate(family, f"{self.tier}, by physics alone", row)
                        for row in _rows(physics, _alone(physics, family.within(gpu)))]
        return [Waves().estimate(kernel, gpu) for kernel in kernels]

    def _side_by_side(self, family: Family, kernels: Sequence[Kernel], shapes: Shapes, gpu: Gpu) -> list[Estimate]:
        """Memory-bound kernels in one go, or one by one where their efficiencies cannot be stacked."""
        chosen, stack = self._stack(family, kernels, gpu)
        if stack is None:
            return [self._group([kernel], gpu)[0] for kernel in kernels]
        physics, prices = stack.price(shapes, gpu)
        if self.fallback is not None and prices.beyond.any():
            other = self.fallback._stack(family, kernels, gpu)[1]
            prices = prices if other is None else blend(prices, other.price(shapes, gpu)[1])
        rows = _rows(physics, prices)
        return [_said(family, own, row) for own, row in zip(chosen, rows, strict=True)]

    def _stack(self, family: Family, kernels: Sequence[Kernel], gpu: Gpu) -> tuple[list[Chosen], Stack | None]:
        key = (gpu.architecture, *(kernel.family for kernel in kernels))
        if key not in self._stacks:
            found = [self._chosen(family.names(kernel), gpu) for kernel in kernels]
            chosen = [each for each in found if each is not None]
            whole = len(chosen) == len(kernels)
            stack = Stack.of([c.efficiency for c in chosen], [c.further for c in chosen]) if whole else None
            self._stacks[key] = chosen, stack
        return self._stacks[key]


def _bounded(estimate: Estimate, kernel: Kernel, gpu: Gpu) -> Estimate:
    """*estimate*, but not below what the GPU's peaks allow."""
    least = max(bounds(kernel, gpu))
    if estimate.low >= least:
        return estimate
    return evolve(estimate, seconds=max(estimate.seconds, least), low=least, high=max(estimate.high, least))


Row = tuple[Any, ...]


def _rows(physics: Physics, prices: Prices) -> list[Row]:
    """What there is to say of each kernel."""
    columns = (prices.seconds, physics.roofline < 0.5 * physics.seconds, physics.compute > physics.memory,
               physics.waves, physics.idle, physics.launch, prices.seconds / np.maximum(physics.roofline, 1e-12),
               prices.low, prices.high, prices.beyond > 0)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _alone(physics: Physics, within: float) -> Prices:
    """What physics says, and nobody has measured on this GPU."""
    return Prices(physics.seconds, physics.seconds * np.exp(-within), physics.seconds * np.exp(within),
                  np.ones_like(physics.seconds))


def _said(family: Family, chosen: Chosen, row: Row) -> Estimate:
    more = f", as {chosen.name}" if not chosen.exact else ", extrapolated" if row[-1] else ""
    return _estimate(family, chosen.tier + more, row)


def _estimate(family: Family, source: str, row: Row) -> Estimate:
    seconds, launch, compute, waves, idle, at, eta, low, high, outside = row
    bound = "launch" if launch else "compute" if compute else "memory"
    return Estimate(seconds, bound, waves, idle, family.launches[at], source, eta, low, high, outside)
