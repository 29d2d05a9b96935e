"""Attention of batches to come: all that no batch changes is worked out once for a layer and a GPU."""

import math
from collections.abc import Sequence
from math import exp
from typing import Any

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from ksim.compute.kernels.attention import AttentionLayer
from ksim.cost.counted import Counted, kinds_of
from ksim.cost.efficiency.attention import FEATURES, cut, features, timed
from ksim.cost.efficiency.attention_grids import Counts, Heads
from ksim.cost.efficiency.attention_rates import Constants, Rates
from ksim.cost.efficiency.physics import Array
from ksim.cost.efficiency.pricing import faded, places_of
from ksim.cost.efficiency.profile import Efficiency
from ksim.cost.efficiency.singly import Judge, judge
from ksim.foundation.arithmetic import Arrays, Floats
from ksim.specs.hardware import Gpu

__all__ = ["Singly", "heads_of"]


def heads_of(layer: AttentionLayer, gpu: Gpu) -> Heads:
    """*layer* on *gpu* as in serving: a step reads the caches of all layers before one again."""
    return Heads.of(Floats, gpu, float(layer.heads), float(layer.kv_heads), float(layer.head_dim), layer.cache.bytes,
                    math.inf, 0.0)


@frozen(eq=False)
class _Physics:
    """From `COUNTS` to seconds, whether what is computed binds them, and those of `FEATURES` that are *needed*, with 0
    for others."""

    heads: Heads
    rates: Rates
    needed: frozenset[int]

    def __call__(self, m: Any, *counts: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        several = Counts(*counts)
        time = timed(cut(several, self.heads, m), several, self.rates, m)
        found = features(several, self.heads, time, m)
        binds = (time.compute > time.memory) & (time.compute >= 0.5 * time.seconds)
        return time.seconds, binds, tuple(each if place in self.needed else 0.0 for place, each in enumerate(found))


@define(eq=False)
class _Fitted:
    """An efficiency that looks at features alone: its physics for floats and for arrays, and who judges features."""

    floats: Counted
    arrays: Counted
    efficiency: Efficiency
    places: NDArray[np.intp]
    place: NDArray[np.intp]
    judge: Judge

    @classmethod
    def of(cls, efficiency: Efficiency, heads: Heads) -> "_Fitted | None":
        places, place = places_of(efficiency.inputs, FEATURES), places_of(efficiency.place, FEATURES)
        if places is None or place is None:
            return None
        physics = _Physics(heads, Rates.of(Constants(**efficiency.constants), heads, Floats),
                           frozenset((*places.tolist(), *place.tolist())))
        return cls(Counted(physics, Floats), Counted(physics, Arrays), efficiency, places, place,
                   judge(efficiency.model, places.tolist(), efficiency.region, place.tolist(), len(FEATURES)))

    def columns(self, counts: Sequence[Array]) -> tuple[Array, NDArray[np.bool_], Array]:
        """Of many kernels: seconds, whether what they compute binds them, and their features."""
        seconds, computes, found = self.arrays[kinds_of(counts)](*counts)
        table = np.empty((len(seconds), len(FEATURES)))
        for column, feature in zip(table.T, found, strict=True):
            column[:] = feature
        return seconds * np.exp(self.efficiency.model(table[:, self.places])), computes, table


@define(eq=False)
class Singly:
    """What a profile says of a layer's kernels: what `estimates` does, but for their intervals."""

    own: _Fitted
    further: float
    other: _Fitted | None

    @classmethod
    def of(cls, heads: Heads, own: Efficiency, other: Efficiency | None, further: float) -> "Singly | None":
        """Priced by their *own* efficiency, and beyond it more and more by the *other*, if there is one; None where
        models look at more than features."""
        fitted, fallback = _Fitted.of(own, heads), _Fitted.of(other, heads) if other is not None else None
        if fitted is None or (other is not None and fallback is None):
            return None
        return cls(fitted, further, fallback)

    def price(self, counts: Sequence[int]) -> tuple[float, bool, bool]:
        """Seconds of a kernel with these `COUNTS`, whether what it computes binds it, and whether it lies within what
        was measured."""
        own, other, kinds = self.own, self.other, (counts[0] > 0, counts[3] > 0)
        seconds, computes, found = own.floats[kinds](*counts)
        beyond, told = own.judge(found)
        seconds *= exp(told)
        beyond += self.further
        if beyond and other is not None:
            there, _, found = other.floats[kinds](*counts)
            seconds = faded(seconds, there * exp(other.judge(found)[1]), beyond, math)
        return seconds, computes, beyond == 0

    def columns(self, counts: Sequence[Array]) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
        """The same of many kernels, whose counts are columns."""
        seconds, computes, table = self.own.columns(counts)
        beyond = self.own.efficiency.region.beyond(table[:, self.own.place]) + self.further
        outside = beyond > 0
        if self.other is not None and outside.any():
            there = self.other.columns(counts)[0]
            seconds[outside] = faded(seconds[outside], there[outside], beyond[outside], np)
        return seconds, computes, ~outside
