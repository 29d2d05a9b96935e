"""Models and regions for one kernel after another, whose few features are a row: what can be worked out before is."""

from collections.abc import Callable, Sequence

import numpy as np
from attrs import define

from ksim.cost.efficiency.models import Constant, Interpolation, Mean, Model, Network, kernel_of
from ksim.cost.efficiency.physics import Array
from ksim.cost.efficiency.region import BORDER, Region

__all__ = ["beyond", "singly"]

#: From a row of all features to what a model makes of those that it looks at.
Single = Callable[[Array], float]


def singly(model: Model, places: Sequence[int], features: int) -> Single:
    """*model*, which looks at *places* of so many features."""
    if isinstance(model, Constant):
        value = float(model.value)
        return lambda row: value
    if isinstance(model, Mean):
        one, other = singly(model.one, places, features), singly(model.other, places, features)
        return lambda row: (one(row) + other(row)) / 2
    if isinstance(model, Network):
        return _Network.of(model, places, features)
    if isinstance(model, Interpolation):
        return _Interpolation.of(model, places, features)
    return lambda row: float(model(row[None, places])[0])


def beyond(region: Region, places: Sequence[int], features: int) -> Single:
    """How far outside *region* a row is, as `Region.beyond` says."""
    own, offsets = region.sides
    mean, matrix = _spread(region.mean, places, features), _spread(own, places, features).T.copy()

    def further(row: Array) -> float:
        sides = matrix.dot(row - mean)
        sides += offsets
        furthest: float = sides[sides.argmax()].item()
        return furthest if furthest > BORDER else 0.0

    return further


def _spread(values: Array, places: Sequence[int], features: int, elsewhere: float = 0.0) -> Array:
    """*values* of the inputs at their *places* among all features."""
    spread = np.full((features, *values.shape[1:]), elsewhere)
    spread[list(places)] = values
    return spread


@define(eq=False)
class _Network:
    """All members side by side: their first layers are one matrix, their second ones the blocks of another."""

    mean: Array
    scale: Array
    lowest: Array
    highest: Array
    first: Array
    first_bias: Array
    second: Array
    second_bias: Array
    last: Array
    last_bias: float

    @classmethod
    def of(cls, model: Network, places: Sequence[int], features: int) -> "_Network":
        members, hidden = model.last.shape[0], model.last.shape[1] - 1
        second = np.zeros((members * hidden, members * hidden))
        for member in range(members):
            own = slice(member * hidden, (member + 1) * hidden)
            second[own, own] = model.second[member, :-1].T
        first = np.concatenate([_spread(layer, places, features).T for layer in model.first[:, :-1]])
        reach = _spread(np.broadcast_to(model.reach, len(places)), places, features)
        return cls(_spread(model.mean, places, features), _spread(model.scale, places, features, np.inf), -reach,
                   reach, first, model.first[:, -1].ravel(), second, model.second[:, -1].ravel(),
                   model.last[:, :-1].ravel() / members, float(model.last[:, -1].mean()))

    def __call__(self, row: Array) -> float:
        held = row - self.mean
        held /= self.scale
        np.minimum(held, self.highest, out=held)
        np.maximum(held, self.lowest, out=held)
        hidden = self.first.dot(held)
        hidden += self.first_bias
        hidden = self.second.dot(np.tanh(hidden, out=hidden))
        hidden += self.second_bias
        mean: float = self.last.dot(np.tanh(hidden, out=hidden)).item()
        return mean + self.last_bias


@define(eq=False)
class _Interpolation:
    """Its components as they are, asked about one row."""

    base: Single
    smooth: float
    components: Sequence[tuple[Array, Array, Array, Array, Array]]

    @classmethod
    def of(cls, model: Interpolation, places: Sequence[int], features: int) -> "_Interpolation":
        components = [(np.asarray(places)[each.seen], each.lengths, each.centre, each.near, each.weights)
                      for each in model.exactly]
        return cls(singly(model.base, places, features), float(model.smooth), components)

    def __call__(self, row: Array) -> float:
        total = self.base(row)
        for seen, lengths, centre, near, weights in self.components:
            point = row[seen]
            point /= lengths
            point -= centre
            at = np.empty(len(near))
            at[:-2], at[-2], at[-1] = point, 1.0, point.dot(point)
            total += kernel_of(at.dot(near), self.smooth).dot(weights).item()
        return total
