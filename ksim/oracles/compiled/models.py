"""Models and regions for one kernel after another, whose few features are a row: what can be worked out before is."""

from collections.abc import Callable, Sequence

import numpy as np
from attrs import define
from numpy.typing import NDArray

from ksim.oracles.efficiency.models import Constant, Interpolation, Mean, Model, Network, kernel_of
from ksim.oracles.efficiency.physics import Array
from ksim.oracles.efficiency.region import BORDER, Region

__all__ = ["Judge", "Teller", "judge", "teller"]

#: From a row of all features, and 1 at its end, to what a model makes of those that it looks at.
Single = Callable[[Array], float]
#: From all features to how far outside a region they are, as `Region.beyond` says, and to what a model makes of them.
Judge = Callable[[Sequence[float]], tuple[float, float]]
#: From all features to what a model makes of them.
Teller = Callable[[Sequence[float]], float]


def judge(model: Model, seen: Sequence[int], region: Region, place: Sequence[int], features: int) -> Judge:
    """Of *model*, which looks at the features *seen*, and of *region*, which looks at those in *place*, of so many."""
    if isinstance(model, Network):
        return _Together.of(model, seen, region, place, features)
    sides, singly = _sides(region, place, features), _singly(model, seen)
    row, out = np.ones(features + 1), np.empty(len(sides))
    known = row[:-1]

    def judged(values: Sequence[float]) -> tuple[float, float]:
        known[:] = values
        return _outside(sides.dot(row, out)), singly(row)

    return judged


def teller(model: Model, seen: Sequence[int], features: int) -> Teller:
    """Of *model*, which looks at those *seen* of so many features."""
    if isinstance(model, Constant):
        value = float(model.value)
        return lambda values: value
    singly, row = _singly(model, seen), np.ones(features + 1)

    def told(values: Sequence[float]) -> float:
        row[:-1] = values
        return singly(row)

    return told


def _outside(sides: Array) -> float:
    """How far outside is what lies so far outside of each side."""
    furthest: float = sides.item(sides.argmax())
    return furthest if furthest > BORDER else 0.0


def _sides(region: Region, place: Sequence[int], features: int) -> Array:
    """What makes a row's distances from all sides of it, (sides, features + 1)."""
    matrix, offsets = region.sides
    return _spread(matrix.T, offsets - region.mean @ matrix, place, features)


def _spread(matrix: Array, constant: Array, places: Sequence[int], features: int) -> Array:
    """A *matrix* of (results, inputs) for a row of all features, where inputs are at *places*, and a *constant*."""
    spread = np.zeros((len(matrix), features + 1))
    spread[:, list(places)] = matrix
    spread[:, -1] = constant
    return spread


def _singly(model: Model, places: Sequence[int]) -> Single:
    """*model*, which looks at *places* of the features."""
    if isinstance(model, Constant):
        value = float(model.value)
        return lambda row: value
    if isinstance(model, Mean):
        one, other = _singly(model.one, places), _singly(model.other, places)
        return lambda row: (one(row) + other(row)) / 2
    if isinstance(model, Interpolation):
        return _Interpolation.of(model, places)
    return lambda row: float(model(row[None, places])[0])


@define(eq=False)
class _Together:
    """A network and a region: what both make of a row at first is one product, into `found`.

    The network's members are side by side: their second layers are the blocks of one matrix.  Where an input is beyond
    its reach (one of `held` is above 0), the network as it is has to hold it; `around` is that and the region's sides.
    """

    model: Network
    places: Sequence[int]
    matrix: Array
    second: Array
    last: Array
    bias: float
    row: Array
    seen: Array
    found: Array
    around: Array
    held: Array
    sides: Array
    hidden: Array
    inner: Array
    between: Array

    @classmethod
    def of(cls, model: Network, seen: Sequence[int], region: Region, place: Sequence[int],
           features: int) -> "_Together":
        scaled, centre = np.diag(1 / model.scale), model.mean / model.scale
        reach = np.broadcast_to(model.reach, len(seen))
        least, most = -centre - reach, centre - reach
        first = np.concatenate([layer.T for layer in model.first[:, :-1]])
        rows = (_spread(np.vstack([scaled, -scaled]), np.concatenate([least, most]), seen, features),
                _sides(region, place, features),
                _spread(first @ scaled, model.first[:, -1].ravel() - first @ centre, seen, features))
        found = np.empty(sum(map(len, rows)))
        held, sides, hidden = np.split(found, np.cumsum([len(each) for each in rows])[:-1])
        row, inner = np.ones(features + 1), np.ones(len(hidden) + 1)
        return cls(model, seen, np.vstack(rows), _blocks(model), model.last[:, :-1].ravel() / len(model.last),
                   float(model.last[:, -1].mean()), row, row[:-1], found, found[:-len(hidden)], held, sides, hidden,
                   inner, inner[:-1])

    def __call__(self, values: Sequence[float]) -> tuple[float, float]:
        around, hidden, beyond = self.around, self.hidden, 0.0
        self.seen[:] = values
        self.matrix.dot(self.row, self.found)
        if around.item(around.argmax()) > 0:
            beyond, held = _outside(self.sides), self.held
            if held.item(held.argmax()) > 0:
                return beyond, float(self.model(self.row[None, self.places])[0])
        np.tanh(hidden, self.between)
        self.second.dot(self.inner, hidden)
        return beyond, float(self.last.dot(np.tanh(hidden, hidden))) + self.bias


def _blocks(model: Network) -> Array:
    """The second layers of all members as blocks of one matrix, and in its last column what they add."""
    members, _, width = model.second.shape
    blocks = np.zeros((members, width, members, width))
    blocks[range(members), :, range(members)] = model.second[:, :-1].transpose(0, 2, 1)
    return np.column_stack([blocks.reshape(members * width, -1), model.second[:, -1].ravel()])


@define(eq=False)
class _Interpolation:
    """Its components as they are, asked about one row."""

    base: Single
    smooth: float
    components: Sequence["_Component"]

    @classmethod
    def of(cls, model: Interpolation, places: Sequence[int]) -> "_Interpolation":
        components = [_Component.of(np.asarray(places)[each.seen], each.lengths, each.centre, each.near, each.weights)
                      for each in model.components]
        return cls(_singly(model.base, places), float(model.smooth), components)

    def __call__(self, row: Array) -> float:
        total = self.base(row)
        for each in self.components:
            total += each(row, self.smooth)
        return total


@define(eq=False)
class _Component:
    """One of its components: `seen` inputs over `lengths` less `centre` are a point, whose squared distances to all
    others are its product with `near`, where it has 1 and its own square at its end."""

    seen: NDArray[np.intp]
    lengths: Array
    centre: Array
    near: Array
    weights: Array
    at: Array
    point: Array
    squares: Array

    @classmethod
    def of(cls, seen: NDArray[np.intp], lengths: Array, centre: Array, near: Array, weights: Array) -> "_Component":
        at = np.ones(len(near))
        return cls(seen, lengths, centre, np.ascontiguousarray(near.T), weights, at, at[:-2], np.empty(len(weights)))

    def __call__(self, row: Array, smooth: float) -> float:
        point = self.point
        np.divide(row[self.seen], self.lengths, point)
        np.subtract(point, self.centre, point)
        self.at[-1] = point.dot(point)
        return float(kernel_of(self.near.dot(self.at, self.squares), smooth).dot(self.weights))
