"""Attention of batches to come: all that no batch changes is worked out once for a layer and a GPU."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define
from numpy.typing import NDArray

from ksim.compute.kernels.attention import COUNTS, Attention, AttentionLayer
from ksim.cost.efficiency.attention import FEATURES, Pieces, Time, cut, features, timed
from ksim.cost.efficiency.attention_grids import Arrays, Counts, Floats, Heads
from ksim.cost.efficiency.attention_rates import Constants, Rates
from ksim.cost.efficiency.families import attentions
from ksim.cost.efficiency.physics import Array
from ksim.cost.efficiency.pricing import faded, places_of
from ksim.cost.efficiency.profile import Efficiency
from ksim.cost.efficiency.singly import Judge, judge
from ksim.specs.hardware import Gpu

__all__ = ["Singly", "heads_of"]


def heads_of(layer: AttentionLayer, gpu: Gpu) -> Heads:
    """*layer* on *gpu* as in serving: a step reads the caches of all layers before one again."""
    return Heads.of(Floats, gpu, float(layer.heads), float(layer.kv_heads), float(layer.head_dim), layer.cache.bytes,
                    math.inf, 0.0)


@define(eq=False)
class _Fitted:
    """An efficiency that looks at features alone: the rates of its constants, and who judges a row of features."""

    rates: Rates
    efficiency: Efficiency
    places: NDArray[np.intp]
    place: NDArray[np.intp]
    judge: Judge

    @classmethod
    def of(cls, efficiency: Efficiency, heads: Heads) -> "_Fitted | None":
        places, place = places_of(efficiency.inputs, FEATURES), places_of(efficiency.place, FEATURES)
        if places is None or place is None:
            return None
        return cls(Rates.of(Constants(**efficiency.constants), heads, Floats), efficiency, places, place,
                   judge(efficiency.model, places.tolist(), efficiency.region, place.tolist(), len(FEATURES)))


@define(eq=False)
class Singly:
    """What a profile says of a layer's kernels: what `estimates` does, but for their intervals."""

    heads: Heads
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
        return cls(heads, fitted, further, fallback)

    def price(self, counts: Sequence[int]) -> tuple[float, bool, bool]:
        """Seconds of a kernel with these `COUNTS`, whether what it computes binds it, and whether it lies within what
        was measured."""
        several = Counts(*counts)
        launches = cut(several, self.heads, Floats)
        time = timed(launches, several, self.own.rates, Floats)
        beyond, told = self.own.judge(features(several, self.heads, time, Floats))
        seconds = time.seconds * math.exp(told)
        beyond += self.further
        if beyond and self.other is not None:
            there = timed(launches, several, self.other.rates, Floats)
            told = self.other.judge(features(several, self.heads, there, Floats))[1]
            seconds = faded(seconds, there.seconds * math.exp(told), beyond, math)
        return seconds, computes(time), beyond == 0

    def columns(self, kernel: Attention) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
        """The same of many kernels that are one, whose counts are columns."""
        shapes = attentions(kernel)
        counts = Counts(*(shapes[name] for name in COUNTS))
        launches = cut(counts, self.heads, Arrays)
        time, table, seconds = self._of_all(self.own, launches, counts)
        beyond = self.own.efficiency.region.beyond(table[:, self.own.place]) + self.further
        outside = beyond > 0
        if outside.any() and self.other is not None:
            there = self._of_all(self.other, launches, counts)[-1]
            seconds[outside] = faded(seconds[outside], there[outside], beyond[outside], np)
        return seconds, np.broadcast_to(computes(time), seconds.shape), ~outside

    def _of_all(self, fitted: _Fitted, launches: Sequence[Pieces], counts: Counts) -> tuple[Time, Array, Array]:
        time = timed(launches, counts, fitted.rates, Arrays)
        table = np.empty((np.size(time.seconds), len(FEATURES)))
        for column, found in zip(table.T, features(counts, self.heads, time, Arrays), strict=True):
            column[:] = found
        return time, table, time.seconds * np.exp(fitted.efficiency.model(table[:, fitted.places]))


def computes(time: Time) -> Any:
    """Whether what kernels compute binds them, and neither memory nor their launch."""
    return (time.compute > time.memory) & (time.compute >= 0.5 * time.seconds)
