"""Small models of a log efficiency, fitted elsewhere and evaluated here with numpy alone.

A model takes an array of inputs, one row a kernel, and returns one number a row.
To add one, add a frozen attrs class whose fields are arrays or models, and name it in `KINDS`.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from attrs import field, frozen
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

#: Rows evaluated together, so that intermediate arrays stay in the CPU's cache.
CHUNK = 4096


def _array(value: ArrayLike) -> Array:
    return np.asarray(value, dtype=np.float64)


class Model(Protocol):
    def __call__(self, inputs: Array) -> Array:
        """From (rows, inputs) to (rows,)."""
        ...


@frozen(eq=False)
class Constant:
    """The same for every kernel."""

    value: Array = field(converter=_array)

    def __call__(self, inputs: Array) -> Array:
        return np.full(len(inputs), float(self.value))


@frozen(eq=False)
class Linear:
    """``intercept + inputs @ slopes``, held within the `lowest` and `highest` that it was fitted to."""

    intercept: Array = field(converter=_array)
    slopes: Array = field(converter=_array)
    lowest: Array = field(converter=_array)
    highest: Array = field(converter=_array)

    def __call__(self, inputs: Array) -> Array:
        held: Array = np.clip(self.intercept + inputs @ self.slopes, self.lowest, self.highest)
        return held


@frozen(eq=False)
class BoundedHead:
    """``-log(g - a / waves)``: a utilisation that grows with the waves towards `g`, never under `floor`.

    The form is NeuSight's (arXiv 2407.13853); its g and a are sigmoids of an
    expression linear in the inputs, of which `waves` is the column of log waves.
    """

    gains: Array = field(converter=_array)
    losses: Array = field(converter=_array)
    waves: Array = field(converter=_array)
    floor: Array = field(converter=_array)

    def __call__(self, inputs: Array) -> Array:
        with_one = np.column_stack([inputs, np.ones(len(inputs))])
        g, a = (1 / (1 + np.exp(-with_one @ weights)) for weights in (self.gains, self.losses))
        waves = np.exp(np.maximum(inputs[:, int(self.waves)], 0.0))
        utilisation: Array = -np.log(np.maximum(g - a / waves, self.floor))
        return utilisation


@frozen(eq=False)
class Trees:
    """The sum of binary trees; all nodes of all trees stand in one row, leaves pointing at themselves.

    `columns` and `thresholds` say which input goes left if it is not above what;
    `roots` is where each tree begins and `depth` how many questions the deepest asks.
    """

    base: Array = field(converter=_array)
    columns: Array = field(converter=_array)
    thresholds: Array = field(converter=_array)
    lefts: Array = field(converter=_array)
    rights: Array = field(converter=_array)
    values: Array = field(converter=_array)
    roots: Array = field(converter=_array)
    depth: Array = field(converter=_array)

    def __call__(self, inputs: Array) -> Array:
        columns, roots = self.columns.astype(np.intp), self.roots.astype(np.intp)
        children = np.stack([self.lefts, self.rights]).astype(np.intp)
        return _chunked(lambda rows: self._sum(rows, columns, roots, children), inputs)

    def _sum(self, inputs: Array, columns: NDArray[np.intp], roots: NDArray[np.intp],
             children: NDArray[np.intp]) -> Array:
        nodes = np.broadcast_to(roots, (len(inputs), len(roots)))
        for _ in range(int(self.depth)):
            above = np.take_along_axis(inputs, columns[nodes], axis=1) > self.thresholds[nodes]
            nodes = children[above.astype(np.intp), nodes]
        total: Array = self.base + self.values[nodes].sum(axis=1)
        return total


@frozen(eq=False)
class Network:
    """The mean of several perceptrons with two hidden layers of tanh, on inputs brought to zero mean and unit spread.

    Shapes: `first` (members, inputs + 1, hidden), `second` (members, hidden + 1,
    hidden) and `last` (members, hidden + 1), the last row of each being its bias.
    Inputs further than `reach` from the mean are held there: a perceptron says
    nothing about places it has not seen.
    """

    mean: Array = field(converter=_array)
    scale: Array = field(converter=_array)
    reach: Array = field(converter=_array)
    first: Array = field(converter=_array)
    second: Array = field(converter=_array)
    last: Array = field(converter=_array)

    def __call__(self, inputs: Array) -> Array:
        return _chunked(self._mean, inputs)

    def _mean(self, inputs: Array) -> Array:
        # Single precision is enough for a logarithm of a time, and twice as fast.
        rows = np.clip((inputs - self.mean) / self.scale, -self.reach, self.reach).astype(np.float32)
        hidden = np.tanh(rows @ self.first[:, :-1].astype(np.float32) + self.first[:, -1:].astype(np.float32))
        hidden = np.tanh(hidden @ self.second[:, :-1].astype(np.float32) + self.second[:, -1:].astype(np.float32))
        out = hidden @ self.last[:, :-1, None].astype(np.float32)
        mean: Array = (out[:, :, 0].mean(axis=0) + self.last[:, -1].mean()).astype(np.float64)
        return mean


@frozen(eq=False)
class Interpolation:
    """A Gaussian process' mean between `points`, with a Matern-3/2 kernel: far from them it is `base` alone.

    `points` (points, inputs) are in units of the kernel's length along each
    input, `lengths` what an input is divided by to get there; `weights` is the
    inverse covariance times the values at the points.
    """

    base: Model
    lengths: Array = field(converter=_array)
    points: Array = field(converter=_array)
    weights: Array = field(converter=_array)

    def __call__(self, inputs: Array) -> Array:
        return self.base(inputs) + _chunked(self._between, inputs)

    def _between(self, inputs: Array) -> Array:
        near = covariance(inputs / self.lengths, self.points)
        mean: Array = near @ self.weights
        return mean


@frozen(eq=False)
class Mean:
    """The mean of two models."""

    one: Model
    other: Model

    def __call__(self, inputs: Array) -> Array:
        return (self.one(inputs) + self.other(inputs)) / 2


KINDS: dict[str, type] = {kind.__name__: kind for kind in (
    Constant, Linear, BoundedHead, Trees, Network, Interpolation, Mean)}


def covariance(rows: Array, points: Array) -> Array:
    """The Matern-3/2 kernel between *rows* (n, inputs) and *points* (m, inputs), both in units of its lengths."""
    squares = (rows**2).sum(axis=1)[:, None] + (points**2).sum(axis=1) - 2.0 * (rows @ points.T)
    distance = np.sqrt(3.0 * np.maximum(squares, 0.0))
    kernel: Array = (1.0 + distance) * np.exp(-distance)
    return kernel


def _chunked(evaluate: Callable[[Array], Array], inputs: Array) -> Array:
    if len(inputs) <= CHUNK:
        return evaluate(inputs)
    return np.concatenate([evaluate(inputs[at : at + CHUNK]) for at in range(0, len(inputs), CHUNK)])
