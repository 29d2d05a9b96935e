"""Models and regions prepared for one kernel at a time, whose features are a single row.

Attention of batches to come: all that no batch changes is worked out once for a layer and a GPU.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from math import exp
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from ksim.compute.kernels.attention import AttentionLayer
from ksim.oracles.compiled.arithmetic import Arrays, Floats, StagedFormula, batch_kinds
from ksim.oracles.efficiency.attention import FEATURES, cut, features, timed
from ksim.oracles.efficiency.attention_grids import AttentionConstants, AttentionRates, Counts, Heads
from ksim.oracles.efficiency.models import (
    BORDER,
    Array,
    Constant,
    Efficiency,
    EfficiencyModel,
    Interpolation,
    Perceptrons,
    Region,
    faded,
    kernel_of,
    places_of,
)
from ksim.specs.hardware import Gpu

if TYPE_CHECKING:
    from ksim.compute.kernels.mla import LatentLayer

__all__ = ["LocatedPredictor", "Predictor", "located_predictor", "predictor", "ProfiledAttention", "heads_of"]


#: From a row of all features, with 1 at its end, to what a model predicts from those that it looks at.
RowModel = Callable[[Array], float]
#: From all features to how far outside a region they lie (`Region.beyond`), and to what a model predicts.
LocatedPredictor = Callable[[Sequence[float]], tuple[float, float]]
#: From all features to what a model predicts.
Predictor = Callable[[Sequence[float]], float]


def located_predictor(model: EfficiencyModel, seen: Sequence[int], region: Region, place: Sequence[int],
                      features: int) -> LocatedPredictor:
    """A function from all features to how far outside *region* they lie, and to the prediction of *model*.

    Of so many *features*, the model looks at those *seen*, and the region at those in *place*.
    """
    if isinstance(model, Perceptrons):
        return _NetworkAndRegion.of(model, seen, region, place, features)
    sides, of_row = _sides(region, place, features), _row_model(model, seen)
    row, out = np.ones(features + 1), np.empty(len(sides))
    known = row[:-1]

    def predict(values: Sequence[float]) -> tuple[float, float]:
        known[:] = values
        return _outside(sides.dot(row, out)), of_row(row)

    return predict


def predictor(model: EfficiencyModel, seen: Sequence[int], features: int) -> Predictor:
    """A function from all of so many *features* to the prediction of *model*, which looks at those *seen*."""
    if isinstance(model, Constant):
        value = float(model.value)
        return lambda values: value
    of_row, row = _row_model(model, seen), np.ones(features + 1)

    def predict(values: Sequence[float]) -> float:
        row[:-1] = values
        return of_row(row)

    return predict


def _outside(sides: Array) -> float:
    """The largest distance from any of the *sides*; 0 within all of them."""
    furthest: float = sides.item(sides.argmax())
    return furthest if furthest > BORDER else 0.0


def _sides(region: Region, place: Sequence[int], features: int) -> Array:
    """The matrix that makes of a row its distances from all sides of *region*: (sides, features + 1)."""
    matrix, offsets = region.sides
    return _spread(matrix.T, offsets - region.mean @ matrix, place, features)


def _spread(matrix: Array, constant: Array, places: Sequence[int], features: int) -> Array:
    """A *matrix* of (results, inputs) for a row of all features, where inputs are at *places*, and a *constant*."""
    spread = np.zeros((len(matrix), features + 1))
    spread[:, list(places)] = matrix
    spread[:, -1] = constant
    return spread


def _row_model(model: EfficiencyModel, places: Sequence[int]) -> RowModel:
    """*model*, which looks at *places* of the features."""
    if isinstance(model, Constant):
        value = float(model.value)
        return lambda row: value
    if isinstance(model, Interpolation):
        return _Interpolation.of(model, places)
    return lambda row: float(model(row[None, places])[0])


@define(eq=False)
class _NetworkAndRegion:
    """A network and a region: what both make of a row at first is one product, into `products`.

    The network's members are side by side: their second layers are the blocks of one matrix.  Where an input is beyond
    its reach (one of `held` is above 0), the network as it is has to hold it; `around` is that and the region's sides.
    """

    model: Perceptrons
    places: Sequence[int]
    matrix: Array
    second: Array
    last: Array
    bias: float
    row: Array
    seen: Array
    products: Array
    around: Array
    held: Array
    sides: Array
    hidden: Array
    inner: Array
    between: Array

    @classmethod
    def of(cls, model: Perceptrons, seen: Sequence[int], region: Region, place: Sequence[int],
           features: int) -> "_NetworkAndRegion":
        scaled, centre = np.diag(1 / model.scale), model.mean / model.scale
        reach = np.broadcast_to(model.reach, len(seen))
        least, most = -centre - reach, centre - reach
        first = np.concatenate([layer.T for layer in model.first[:, :-1]])
        rows = (_spread(np.vstack([scaled, -scaled]), np.concatenate([least, most]), seen, features),
                _sides(region, place, features),
                _spread(first @ scaled, model.first[:, -1].ravel() - first @ centre, seen, features))
        products = np.empty(sum(map(len, rows)))
        held, sides, hidden = np.split(products, np.cumsum([len(part) for part in rows])[:-1])
        row, inner = np.ones(features + 1), np.ones(len(hidden) + 1)
        return cls(model, seen, matrix=np.vstack(rows), second=_blocks(model),
                   last=model.last[:, :-1].ravel() / len(model.last), bias=float(model.last[:, -1].mean()),
                   row=row, seen=row[:-1], products=products, around=products[:-len(hidden)], held=held, sides=sides,
                   hidden=hidden, inner=inner, between=inner[:-1])

    def __call__(self, values: Sequence[float]) -> tuple[float, float]:
        around, hidden, beyond = self.around, self.hidden, 0.0
        self.seen[:] = values
        self.matrix.dot(self.row, self.products)
        if around.item(around.argmax()) > 0:
            beyond, held = _outside(self.sides), self.held
            if held.item(held.argmax()) > 0:
                return beyond, float(self.model(self.row[None, self.places])[0])
        np.tanh(hidden, self.between)
        self.second.dot(self.inner, hidden)
        return beyond, float(self.last.dot(np.tanh(hidden, hidden))) + self.bias


def _blocks(model: Perceptrons) -> Array:
    """The second layers of all members as blocks of one matrix, and in its last column what they add."""
    members, _, width = model.second.shape
    blocks = np.zeros((members, width, members, width))
    blocks[range(members), :, range(members)] = model.second[:, :-1].transpose(0, 2, 1)
    return np.column_stack([blocks.reshape(members * width, -1), model.second[:, -1].ravel()])


@define(eq=False)
class _Interpolation:
    """Its components as they are, asked about one row."""

    base: RowModel
    smooth: float
    components: Sequence["_RowComponent"]

    @classmethod
    def of(cls, model: Interpolation, places: Sequence[int]) -> "_Interpolation":
        components = [_RowComponent.of(np.asarray(places)[part.seen], part.lengths, part.centre, part.near,
                                       part.weights) for part in model.components]
        return cls(_row_model(model.base, places), float(model.smooth), components)

    def __call__(self, row: Array) -> float:
        total = self.base(row)
        for component in self.components:
            total += component(row, self.smooth)
        return total


@define(eq=False)
class _RowComponent:
    """One component of an interpolation, for one row at a time.

    The `seen` inputs over `lengths`, less `centre`, are a point.  With 1 and its own square at its end, its product
    with `near` is the squared distances to all points.
    """

    seen: NDArray[np.intp]
    lengths: Array
    centre: Array
    near: Array
    weights: Array
    at: Array
    point: Array
    squares: Array

    @classmethod
    def of(cls, seen: NDArray[np.intp], lengths: Array, centre: Array, near: Array, weights: Array) -> "_RowComponent":
        at = np.ones(len(near))
        return cls(seen, lengths, centre, np.ascontiguousarray(near.T), weights, at=at, point=at[:-2],
                   squares=np.empty(len(weights)))

    def __call__(self, row: Array, smooth: float) -> float:
        point = self.point
        np.divide(row[self.seen], self.lengths, point)
        np.subtract(point, self.centre, point)
        self.at[-1] = point.dot(point)
        return float(kernel_of(self.near.dot(self.at, self.squares), smooth).dot(self.weights))


def heads_of(layer: AttentionLayer, gpu: Gpu) -> Heads:
    """*layer* on *gpu* as in serving: a step reads the caches of all layers before one again."""
    return Heads.of(Floats, gpu, float(layer.heads), float(layer.kv_heads), float(layer.head_dim), layer.cache.bytes,
                    footprint=math.inf, writes=0.0)


@frozen(eq=False)
class _Heads:
    """Attention with keys and values of its own for every KV head, or for some heads."""

    heads: Heads

    features: ClassVar[tuple[str, ...]] = FEATURES

    def of(self, constants: Mapping[str, float]) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
        """The formula from a namespace and `COUNTS` to the time of kernels, and their features."""
        rates = AttentionRates.of(AttentionConstants(**constants), self.heads, Floats)

        def formula(m: Any, *counts: Any) -> tuple[Any, tuple[Any, ...]]:
            totals = Counts(*counts)
            time = timed(cut(totals, self.heads, m), totals, rates, m)
            return time, features(totals, self.heads, time, m)

        return formula


@frozen(eq=False)
class _Latent:
    """Latent attention, whose physics is loaded where there is some."""

    layer: "LatentLayer"
    gpu: Gpu
    physics: Any

    @classmethod
    def of_layer(cls, layer: "LatentLayer", gpu: Gpu) -> "_Latent":
        from ksim.oracles.efficiency import mla

        return cls(layer, gpu, mla)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        names: tuple[str, ...] = self.physics.FEATURES
        return names

    def of(self, constants: Mapping[str, float]) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
        """The formula from a namespace and `COUNTS` to the time of kernels, and their features."""
        known = self.physics.LatentConstants(**constants)

        def formula(m: Any, *counts: Any) -> tuple[Any, tuple[Any, ...]]:
            time = self.physics.timed(self.physics.shapes_of(self.layer.kernel(counts)), self.gpu, known, m)
            return time, time.features

        return formula


@frozen(eq=False)
class _Physics:
    """The formula from `COUNTS` to seconds, whether compute bounds them, and features: 0 for those not *needed*."""

    formula: Callable[..., tuple[Any, tuple[Any, ...]]]
    needed: frozenset[int]

    def __call__(self, m: Any, *counts: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        time, values = self.formula(m, *counts)
        binds = (time.compute > time.memory) & (time.compute >= 0.5 * time.seconds)
        return time.seconds, binds, tuple(value if index in self.needed else 0.0 for index, value in enumerate(values))


@define(eq=False)
class _Fitted:
    """An efficiency whose model looks at features alone, in `places`, and its physics for floats and for arrays."""

    efficiency: Efficiency
    places: NDArray[np.intp]
    floats: StagedFormula
    arrays: StagedFormula

    @classmethod
    def of(cls, efficiency: Efficiency, kind: _Heads | _Latent, further: Sequence[int] = ()) -> "_Fitted | None":
        """The efficiency with the *further* features that are asked for; None where its model looks at others."""
        places = places_of(efficiency.inputs, kind.features)
        if places is None:
            return None
        physics = _Physics(kind.of(efficiency.constants), frozenset((*places.tolist(), *further)))
        return cls(efficiency, places, StagedFormula(physics, Floats), StagedFormula(physics, Arrays))

    def columns(self, counts: Sequence[Array]) -> tuple[Array, NDArray[np.bool_], Array]:
        """Seconds of many kernels, whether compute bounds them, and their features."""
        seconds, computes, values = self.arrays[batch_kinds(counts)](*counts)
        table = np.empty((len(seconds), len(values)))
        for column, feature in enumerate(values):
            table[:, column] = feature
        return seconds * np.exp(self.efficiency.model(table.take(self.places, axis=1))), computes, table


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
    def of(cls, layer: "AttentionLayer | LatentLayer", gpu: Gpu, own: Efficiency, other: Efficiency | None,
           further: float) -> "ProfiledAttention | None":
        """Priced by their *own* efficiency, and beyond it more and more by the *other*, if there is one; None where
        models, or the first one's region, look at more than features."""
        kind = _Heads(heads_of(layer, gpu)) if isinstance(layer, AttentionLayer) else _Latent.of_layer(layer, gpu)
        place, count = places_of(own.place, kind.features), len(kind.features)
        fitted = _Fitted.of(own, kind, place.tolist()) if place is not None else None
        fallback = _Fitted.of(other, kind) if other is not None else None
        if place is None or fitted is None or (other is not None and fallback is None):
            return None
        predict = located_predictor(own.model, fitted.places.tolist(), own.region, place.tolist(), count)
        predict_other = predictor(fallback.efficiency.model, fallback.places.tolist(), count) if fallback else None
        return cls(fitted, place, predict, further, fallback, predict_other)

    def price(self, counts: Sequence[int]) -> tuple[float, bool, bool]:
        """Seconds of a kernel with these `COUNTS`, whether what it computes binds it, and whether kernels of its
        formats were measured."""
        kinds = counts[0] > 0, counts[3] > 0
        seconds, computes, values = self.own.floats[kinds](*counts)
        beyond, log_efficiency = self.predict(values)
        seconds *= exp(log_efficiency)
        beyond += self.further
        if beyond and self.other and self.predict_other:
            there, _, values = self.other.floats[kinds](*counts)
            seconds = faded(seconds, there * exp(self.predict_other(values)), beyond, math)
        return seconds, computes, not self.further

    def columns(self, counts: Sequence[Array]) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
        """Price many kernels, whose counts are columns."""
        seconds, computes, table = self.own.columns(counts)
        beyond = self.own.efficiency.region.beyond(table.take(self.place, axis=1)) + self.further
        if self.other is not None and beyond.max() > 0:
            outside = beyond > 0
            there = self.other.columns(counts)[0]
            seconds[outside] = faded(seconds[outside], there[outside], beyond[outside], np)
        return seconds, computes, np.full(len(seconds), not self.further)
