"""Attention of one batch after another: all that no batch changes is worked out once for a layer and a GPU."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attrs import define

from ksim.compute.kernels.attention import AttentionLayer
from ksim.cost.efficiency.attention import FEATURES, Pieces, cut, features, timed
from ksim.cost.efficiency.attention_grids import Floats, Heads
from ksim.cost.efficiency.attention_rates import Constants, Rates
from ksim.cost.efficiency.physics import Array
from ksim.cost.efficiency.pricing import faded, places_of
from ksim.cost.efficiency.profile import Efficiency
from ksim.cost.efficiency.singly import beyond, singly
from ksim.specs.hardware import Gpu

__all__ = ["Singly", "heads_of"]


def heads_of(layer: AttentionLayer, gpu: Gpu) -> Heads:
    """*layer* on *gpu* as in serving: a step reads the caches of all layers before one again."""
    return Heads.of(Floats, gpu, float(layer.heads), float(layer.kv_heads), float(layer.head_dim), layer.cache.bytes,
                    math.inf, 0.0)


@define(eq=False)
class _Fitted:
    """An efficiency: the rates of its constants, and its model where that looks at features alone."""

    rates: Rates
    model: Callable[[Array], float]

    @classmethod
    def of(cls, efficiency: Efficiency, heads: Heads) -> "_Fitted | None":
        places = places_of(efficiency.inputs, FEATURES)
        if places is None:
            return None
        return cls(Rates.of(Constants(**efficiency.constants), heads, Floats),
                   singly(efficiency.model, places.tolist(), len(FEATURES)))


@define(eq=False)
class Singly:
    """What a profile says of a layer's kernels, one by one; `sources` within its data, and beyond them."""

    heads: Heads
    own: _Fitted
    beyond: Callable[[Array], float]
    further: float
    other: _Fitted | None
    sources: tuple[str, str]

    @classmethod
    def of(cls, heads: Heads, own: Efficiency, other: Efficiency | None, further: float,
           sources: tuple[str, str]) -> "Singly | None":
        """Priced by their *own* efficiency, and beyond it more and more by the *other*, if there is one; None where
        models look at more than features."""
        place, fitted = places_of(own.place, FEATURES), _Fitted.of(own, heads)
        fallback = _Fitted.of(other, heads) if other is not None else None
        if place is None or fitted is None or (other is not None and fallback is None):
            return None
        return cls(heads, fitted, beyond(own.region, place.tolist(), len(FEATURES)), further, fallback, sources)

    def price(self, kernel: Any) -> tuple[float, bool, str]:
        """Seconds of *kernel*, whether what it computes binds it, and who says so."""
        launches: Sequence[Pieces] = cut(kernel, self.heads, Floats)
        time = timed(launches, kernel, self.own.rates, Floats)
        row = np.array(features(kernel, self.heads, time, Floats))
        beyond = self.beyond(row) + self.further
        seconds = time.seconds * math.exp(self.own.model(row))
        if beyond and self.other is not None:
            seconds = faded(seconds, self._otherwise(launches, kernel), beyond, math)
        computes = time.compute > time.memory and time.compute >= 0.5 * time.seconds
        return seconds, computes, self.sources[beyond > 0]

    def _otherwise(self, launches: Sequence[Pieces], kernel: Any) -> float:
        assert self.other is not None
        time = timed(launches, kernel, self.other.rates, Floats)
        row = np.array(features(kernel, self.heads, time, Floats))
        seconds: float = time.seconds * math.exp(self.other.model(row))
        return seconds
