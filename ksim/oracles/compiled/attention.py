"""Attention of batches to come: all that no batch changes is worked out once for a layer and a GPU."""

import math
from collections.abc import Sequence
from math import exp
from typing import Any

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from ksim.compute.kernels.attention import AttentionLayer
from ksim.oracles.compiled.arithmetic import Arrays, Floats
from ksim.oracles.compiled.predictors import LocatedPredictor, Predictor, located_predictor, predictor
from ksim.oracles.compiled.staging import StagedFormula, batch_kinds
from ksim.oracles.efficiency.attention import FEATURES, cut, features, timed
from ksim.oracles.efficiency.attention_grids import Counts, Heads
from ksim.oracles.efficiency.attention_rates import Constants, Rates
from ksim.oracles.efficiency.fitted import Efficiency, faded
from ksim.oracles.efficiency.models import places_of
from ksim.oracles.efficiency.physics import Array
from ksim.specs.hardware import Gpu

__all__ = ["ProfiledAttention", "heads_of"]


def heads_of(layer: AttentionLayer, gpu: Gpu) -> Heads:
    """*layer* on *gpu* as in serving: a step reads the caches of all layers before one again."""
    return Heads.of(Floats, gpu, float(layer.heads), float(layer.kv_heads), float(layer.head_dim), layer.cache.bytes,
                    footprint=math.inf, writes=0.0)


@frozen(eq=False)
class _Physics:
    """From `COUNTS` to seconds, whether what is computed binds them, and those of `FEATURES` that are *needed*, with 0
    for others."""

    heads: Heads
    rates: Rates
    needed: frozenset[int]

    def __call__(self, m: Any, *counts: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        totals = Counts(*counts)
        time = timed(cut(totals, self.heads, m), totals, self.rates, m)
        values = features(totals, self.heads, time, m)
        binds = (time.compute > time.memory) & (time.compute >= 0.5 * time.seconds)
        return time.seconds, binds, tuple(value if place in self.needed else 0.0 for place, value in enumerate(values))


@define(eq=False)
class _Fitted:
    """An efficiency whose model looks at features alone, in `places`, and its physics for floats and for arrays."""

    efficiency: Efficiency
    places: NDArray[np.intp]
    floats: StagedFormula
    arrays: StagedFormula

    @classmethod
    def of(cls, efficiency: Efficiency, heads: Heads, further: Sequence[int] = ()) -> "_Fitted | None":
        """With *further* features that are asked for; None where the model looks at more."""
        places = places_of(efficiency.inputs, FEATURES)
        if places is None:
            return None
        rates = Rates.of(Constants(**efficiency.constants), heads, Floats)
        physics = _Physics(heads, rates, frozenset((*places.tolist(), *further)))
        return cls(efficiency, places, StagedFormula(physics, Floats), StagedFormula(physics, Arrays))

    def columns(self, counts: Sequence[Array]) -> tuple[Array, NDArray[np.bool_], Array]:
        """Of many kernels: seconds, whether what they compute binds them, and their features."""
        seconds, computes, values = self.arrays[batch_kinds(counts)](*counts)
        table = np.empty((len(seconds), len(FEATURES)))
        for column, feature in zip(table.T, values, strict=True):
            column[:] = feature
        return seconds * np.exp(self.efficiency.model(table[:, self.places])), computes, table


@define(eq=False)
class ProfiledAttention:
    """The `CompiledAttention` of a profile: prices a layer's kernels as `estimates` does, without intervals."""

    own: _Fitted
    place: NDArray[np.intp]
    predict: LocatedPredictor
    further: float
    other: _Fitted | None
    predict_other: Predictor | None

    @classmethod
    def of(cls, heads: Heads, own: Efficiency, other: Efficiency | None, further: float) -> "ProfiledAttention | None":
        """Priced by their *own* efficiency, and beyond it more and more by the *other*, if there is one; None where
        models, or the first one's region, look at more than features."""
        place = places_of(own.place, FEATURES)
        fitted = _Fitted.of(own, heads, place.tolist()) if place is not None else None
        fallback = _Fitted.of(other, heads) if other is not None else None
        if place is None or fitted is None or (other is not None and fallback is None):
            return None
        predict = located_predictor(own.model, fitted.places.tolist(), own.region, place.tolist(), len(FEATURES))
        predict_other = (predictor(fallback.efficiency.model, fallback.places.tolist(), len(FEATURES)) if fallback
                         else None)
        return cls(fitted, place, predict, further, fallback, predict_other)

    def price(self, counts: Sequence[int]) -> tuple[float, bool, bool]:
        """Seconds of a kernel with these `COUNTS`, whether what it computes binds it, and whether it lies within what
        was measured."""
        kinds = counts[0] > 0, counts[3] > 0
        seconds, computes, values = self.own.floats[kinds](*counts)
        beyond, log_efficiency = self.predict(values)
        seconds *= exp(log_efficiency)
        beyond += self.further
        if beyond and self.other and self.predict_other:
            there, _, values = self.other.floats[kinds](*counts)
            seconds = faded(seconds, there * exp(self.predict_other(values)), beyond, math)
        return seconds, computes, beyond == 0

    def columns(self, counts: Sequence[Array]) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
        """The same of many kernels, whose counts are columns."""
        seconds, computes, table = self.own.columns(counts)
        beyond = self.own.efficiency.region.beyond(table[:, self.place]) + self.further
        outside = beyond > 0
        if self.other is not None and outside.any():
            there = self.other.columns(counts)[0]
            seconds[outside] = faded(seconds[outside], there[outside], beyond[outside], np)
        return seconds, computes, ~outside
