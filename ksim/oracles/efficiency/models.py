"""Small models of a log efficiency, fitted elsewhere and evaluated here with numpy alone.

A model takes an array of inputs, one row a kernel, and returns one number a row, which is the same to the last bit
whatever other rows there are: what is added up along a row goes through `times`.
To add one, add a frozen attrs class whose fields are arrays or models, and name it in `KINDS`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ksim.oracles.efficiency.gemm import Array, Physics, doubles

#: Rows evaluated together, so that intermediate arrays stay in the CPU's cache.
CHUNK = 4096
#: The same in pairs of rows and points, where each row meets a thousand: more would be memory that the system clears.
PAIRS = 15_000
#: A name and its place.
_Named = tuple[int, str]
#: What an input's name begins with where it is the logarithm of a column of the shape and not a feature.
LOG = "log2 "


class Model(Protocol):
    def __call__(self, inputs: Array) -> Array:
        """From (rows, inputs) to (rows,)."""
        ...


@frozen(eq=False)
class Constant:
    """The same for every kernel."""

    value: Array = field(converter=doubles)

    def __call__(self, inputs: Array) -> Array:
        return np.full(len(inputs), float(self.value))


@frozen(eq=False)
class Linear:
    """``intercept + inputs @ slopes``, held within the `lowest` and `highest` that it was fitted to."""

    intercept: Array = field(converter=doubles)
    slopes: Array = field(converter=doubles)
    lowest: Array = field(converter=doubles)
    highest: Array = field(converter=doubles)

    def __call__(self, inputs: Array) -> Array:
        held: Array = np.clip(self.intercept + times(inputs, self.slopes), self.lowest, self.highest)
        return held


@frozen(eq=False, slots=False)
class Network:
    """The mean of several perceptrons with two hidden layers of tanh, on inputs brought to zero mean and unit spread.

    Shapes: `first` (members, inputs + 1, hidden), `second` (members, hidden + 1,
    hidden) and `last` (members, hidden + 1), the last row of each being its bias.
    Inputs further than `reach` from the mean are held there: a perceptron says
    nothing about places it has not seen.
    """

    mean: Array = field(converter=doubles)
    scale: Array = field(converter=doubles)
    reach: Array = field(converter=doubles)
    first: Array = field(converter=doubles)
    second: Array = field(converter=doubles)
    last: Array = field(converter=doubles)

    def __call__(self, inputs: Array) -> Array:
        return _chunked(self._mean, inputs)

    def _mean(self, inputs: Array) -> Array:
        rows = np.clip((inputs - self.mean) / self.scale, -self.reach, self.reach)
        members, count = len(self.first), len(rows)
        hidden = np.tanh(times(rows, self._side_by_side) + self.first[:, -1].ravel())
        hidden = hidden.reshape(count, members, 1, -1) @ self.second[:, :-1]
        hidden = np.tanh(hidden.reshape(count, members, -1) + self.second[:, -1])
        mean: Array = times(hidden.reshape(count, -1), self.last[:, :-1].ravel() / members) + self.last[:, -1].mean()
        return mean

    @cached_property
    def _side_by_side(self) -> Array:
        """The first layers of all members, (inputs, members x hidden)."""
        return np.concatenate([*self.first[:, :-1]], axis=1)


@frozen(eq=False, slots=False)
class Interpolation:
    """A Gaussian process' mean between `points`: far from them it is `base` alone.

    Its kernel is a sum of components: `amplitudes` (components,) times ``(1 +
    smooth x distance) exp(-distance)``, with inputs divided by the component's
    `lengths` (components, inputs), infinite where it does not look at one.
    `smooth` is 1 for a kernel of Matern's with 3/2, 0 for the exponential one,
    which jumps follow.  `points` are (points, inputs), and `weights` the
    inverse covariance times the values at the points.
    """

    base: Model
    smooth: Array = field(converter=doubles)
    amplitudes: Array = field(converter=doubles)
    lengths: Array = field(converter=doubles)
    points: Array = field(converter=doubles)
    weights: Array = field(converter=doubles)

    def __call__(self, inputs: Array) -> Array:
        total = self.base(inputs)
        for component in self.components:
            total = total + component.between(inputs, float(self.smooth))
        return total

    @cached_property
    def components(self) -> list["_Component"]:
        return [_Component.of(self, i) for i in range(len(self.amplitudes))]


@frozen(eq=False)
class _Component:
    """One component, made ready: squares of distances come out of a single product with `near`.

    `seen` are the inputs that it looks at; small numbers around `centre` lose least.
    """

    seen: NDArray[np.intp]
    lengths: Array
    centre: Array
    near: Array
    weights: Array

    @classmethod
    def of(cls, model: Interpolation, component: int) -> "_Component":
        seen = np.flatnonzero(np.isfinite(model.lengths[component]))
        lengths = model.lengths[component][seen]
        points = model.points[:, seen] / lengths
        centre = points.mean(axis=0)
        return cls(seen, lengths, centre, column_side(points - centre), model.amplitudes[component] * model.weights)

    def between(self, inputs: Array, smooth: float) -> Array:
        at = row_side(inputs[:, self.seen] / self.lengths - self.centre)
        rows = max(1, PAIRS // len(self.weights))
        return _chunked(lambda part: times(kernel_of(times(part, self.near), smooth), self.weights), at, rows)


KINDS: dict[str, type] = {kind.__name__: kind for kind in (Constant, Linear, Network, Interpolation)}


def row_side(points: Array) -> Array:
    """Points (n, inputs) so that their product with the `column_side` of others is the squares of all distances."""
    return np.column_stack([points, np.ones(len(points)), squares(points)])


def column_side(points: Array) -> Array:
    """The other side of that product, (inputs + 2, points)."""
    return np.vstack([-2.0 * points.T, squares(points), np.ones(len(points))])


def kernel_of(squared: Array, smooth: float) -> Array:
    """``(1 + smooth x distance) exp(-distance)``; *squared* is overwritten."""
    np.abs(squared, out=squared)  # rounding may leave one just below zero
    distance = np.sqrt(squared, out=squared)
    if not smooth:
        np.exp(np.negative(distance, out=distance), out=distance)
        return squared
    near: Array = np.negative(distance)
    np.exp(near, out=near)
    distance *= smooth
    distance += 1.0
    near *= distance
    return near


def _chunked(evaluate: Callable[[Array], Array], inputs: Array, chunk: int = CHUNK) -> Array:
    if len(inputs) <= chunk:
        return evaluate(inputs)
    return np.concatenate([evaluate(inputs[at : at + chunk]) for at in range(0, len(inputs), chunk)])


def times(rows: Array, matrix: Array) -> Array:
    """``rows @ matrix``, (rows, inputs) by (inputs, results) or (inputs,), row by row.

    Libraries add up in another order where there are more rows.  One call of the same shape for each row cannot, and
    numpy makes them all by itself.
    """
    apart = np.ascontiguousarray(rows)[:, None]
    results: Array = (apart @ matrix)[:, 0] if matrix.ndim > 1 else (apart @ matrix[:, None])[:, 0, 0]
    return results


def squares(rows: Array) -> Array:
    """The sum of squares of each of *rows*, (rows, inputs)."""
    rows = np.ascontiguousarray(rows)
    sums: Array = (rows[:, None] @ rows[:, :, None])[:, 0, 0]
    return sums


def inputs_of(names: Sequence[str], physics: Physics, features: Sequence[str], shapes: Mapping[str, Array]) -> Array:
    """The columns called *names*: of the features, worked out further, or, as in ``log2 m``, of the shapes."""
    if (places := places_of(tuple(names), tuple(features))) is not None:
        return physics.features.take(places, axis=1)
    known, at, logs, more = _sorted(tuple(names), tuple(features))
    table = np.empty((len(names), len(physics.seconds)))
    table[known] = physics.features.T[at]
    for place, name in logs:
        np.log2(shapes[name], out=table[place])
    for (place, _), column in zip(more, physics.further(tuple(name for _, name in more)), strict=True):
        table[place] = column
    return np.ascontiguousarray(table.T)


@lru_cache
def _sorted(names: tuple[str, ...],
            features: tuple[str, ...]) -> tuple[list[int], list[int], list[_Named], list[_Named]]:
    """Which of *names* are features, and where among them; then logarithms of columns, and what has to be worked out,
    each with its place."""
    known = [place for place, name in enumerate(names) if name in features]
    rest = [(place, name) for place, name in enumerate(names) if name not in features]
    logs = [(place, name.removeprefix(LOG)) for place, name in rest if name.startswith(LOG)]
    return (known, [features.index(names[place]) for place in known], logs,
            [(place, name) for place, name in rest if not name.startswith(LOG)])


@lru_cache
def places_of(names: tuple[str, ...], features: tuple[str, ...]) -> NDArray[np.intp] | None:
    """Where *names* are among *features*; None where one is not."""
    return np.array([features.index(name) for name in names], dtype=np.intp) if {*names} <= {*features} else None
