"""Fitted efficiencies: what kernels take by one, where it holds, and how far off it may be."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from attrs import field, fields, frozen
from numpy.typing import NDArray

from ksim.oracles.efficiency.gemm import Array, Physics, doubles
from ksim.oracles.efficiency.models import Model, inputs_of

__all__ = ["BORDER", "Efficiency", "Prices", "Region", "Spread", "blend", "faded", "FEWEST"]

#: A float32 file rounds its bounds: what is no further outside than this, as a share of the extent, is inside.
BORDER = 1e-5
#: The share of measurements that an interval is to hold.
COVERAGE = 0.9
#: Cells with fewer residuals than this take the quantiles of all.
FEWEST = 40
#: By how much an interval grows for what lies outside the data, per share of the data's extent.
WIDENING = 4.0
#: How far beyond the data, as a share of its extent, what was measured there loses its weight.
FADING = 0.5


@frozen(eq=False)
class Region:
    """Bounds on each input, and on the sum and the difference of each pair, all in spreads of the data.

    That is the smallest convex shape with faces in these directions around the
    data: tighter than a box, for shapes that grow together, and as quick to ask.
    """

    mean: Array = field(converter=doubles)
    scale: Array = field(converter=doubles)
    lowest: Array = field(converter=doubles)
    highest: Array = field(converter=doubles)

    @classmethod
    def around(cls, inputs: Array) -> "Region":
        """The region of *inputs*, one row a measurement; an input that never varies is not looked at."""
        mean, spread = inputs.mean(axis=0), inputs.std(axis=0)
        scale = np.where(spread > 1e-9, spread, np.inf)
        faces = (inputs - mean) / scale @ _directions(inputs.shape[1])
        return cls(mean, scale, faces.min(axis=0), faces.max(axis=0))

    def beyond(self, inputs: Array) -> Array:
        """How far outside each row is, as a share of the data's own extent in that direction; 0 inside.

        Where inputs go together, as sizes do in layers of one model, the data has next to no extent in some direction:
        then distances count in spreads.
        """
        faces = (inputs - self.mean) / self.scale @ _directions(inputs.shape[1])
        over = self.lowest - faces
        np.maximum(over, np.subtract(faces, self.highest, out=faces), out=over)
        if not (over.max(initial=0.0) > 0.0):  # as most are
            return np.zeros(len(over))
        furthest: Array = np.divide(over, self._extent, out=over).max(axis=1)
        return np.where(furthest > BORDER, furthest, 0.0)

    @cached_property
    def _extent(self) -> Array:
        extent: Array = np.maximum(self.highest - self.lowest, 1.0)
        return extent

    @property
    def sides(self) -> tuple[Array, Array]:
        """A matrix of (inputs, 2 x faces) and a row of offsets: what inputs less `mean`, times the one, plus the other
        say of each face from either side is how far outside it they are, negative inside."""
        directions = _directions(len(self.mean)) / self.scale[:, None] / self._extent
        return (np.hstack([-directions, directions]),
                np.concatenate([self.lowest / self._extent, -self.highest / self._extent]))

    @classmethod
    def stacked(cls, regions: Sequence["Region"]) -> "Region":
        """Regions of as many inputs each, one above the other: each is asked about its own row."""
        return cls(*(np.stack([getattr(region, name) for region in regions])
                     for name in ("mean", "scale", "lowest", "highest")))

    def of_rows(self, rows: NDArray[np.intp]) -> "Region":
        """Of those that are stacked, the ones at *rows*."""
        return Region(*(getattr(self, name)[rows] for name in ("mean", "scale", "lowest", "highest")))


_DIRECTIONS: dict[int, Array] = {}


def _directions(inputs: int) -> Array:
    """Columns: every axis, and the sum and the difference of every two; products with them round once, in any order."""
    if inputs not in _DIRECTIONS:
        axes = np.eye(inputs)
        pairs = [axes[i] + sign * axes[j] for i, j in combinations(range(inputs), 2) for sign in (1, -1)]
        _DIRECTIONS[inputs] = np.array([*axes, *pairs]).T
    return _DIRECTIONS[inputs]


@frozen(eq=False)
class Spread:
    """Log of measured over estimated time, 5 % and 95 % quantiles, by where the input `column` lies among `edges`."""

    column: Array = field(converter=doubles)
    edges: Array = field(converter=doubles)
    low: Array = field(converter=doubles)
    high: Array = field(converter=doubles)

    @classmethod
    def of(cls, residuals: Array, inputs: Array, column: int, cells: int = 8, weights: Array | None = None) -> "Spread":
        """Learn the cells from *residuals* of rows that the model was not fitted to; split conformal quantiles."""
        weights = np.ones(len(residuals)) if weights is None else weights
        edges = np.unique(np.quantile(inputs[:, column], np.linspace(0, 1, cells + 1)[1:-1]))
        cell = np.searchsorted(edges, inputs[:, column], side="right")
        everywhere = _quantiles(residuals, weights)
        bounds = [
            _quantiles(residuals[cell == i], weights[cell == i]) if (cell == i).sum() >= FEWEST else everywhere
            for i in range(len(edges) + 1)
        ]
        return cls(column, edges, *np.array(bounds).T)

    @classmethod
    def stacked(cls, spreads: Sequence["Spread"]) -> "Spread":
        """Spreads one above the other: each is asked about its own row."""
        most = max(len(spread.edges) for spread in spreads)

        def padded(name: str, count: int, filling: float) -> Array:
            return np.stack([np.pad(getattr(spread, name), (0, count - len(getattr(spread, name))),
                                    constant_values=filling) for spread in spreads])

        return cls(np.array([spread.column for spread in spreads]), padded("edges", most, np.inf),
                   padded("low", most + 1, 0.0), padded("high", most + 1, 0.0))

    def of_rows(self, rows: NDArray[np.intp]) -> "Spread":
        """Of those that are stacked, the ones at *rows*."""
        return Spread(*(getattr(self, name)[rows] for name in ("column", "edges", "low", "high")))

    def interval(self, inputs: Array, beyond: Array) -> tuple[Array, Array]:
        """Logs of the factors from estimates to the ends of their 90 % intervals, wider for what lies *beyond*."""
        if self.edges.ndim == 1:
            cell = np.searchsorted(self.edges, inputs[:, int(self.column)], side="right")
            low, high = self.low[cell], self.high[cell]
        else:
            row = np.arange(len(inputs))
            cell = (inputs[row, self.column.astype(np.intp)][:, None] >= self.edges).sum(axis=1)
            low, high = self.low[row, cell], self.high[row, cell]
        # Far out, what the data knows of the sign of an error is worth nothing: both sides grow by the larger.
        growth = WIDENING * beyond * np.maximum(-low, high)
        return low - growth, high + growth


def _quantiles(residuals: Array, weights: Array) -> tuple[float, float]:
    """The weighted quantiles that leave out half of what is not covered on either side."""
    order = np.argsort(residuals)
    share = np.cumsum(weights[order])
    share /= share[-1]
    # Split conformal prediction asks for the (n + 1)-th part more than the quantile itself.
    out = (1 - COVERAGE) / 2 * (1 - 1 / (len(residuals) + 1))
    low, high = np.searchsorted(share, [out, 1 - out])
    ordered = residuals[order]
    return float(min(ordered[low], 0.0)), float(max(ordered[min(high, len(ordered) - 1)], 0.0))


@frozen(eq=False)
class Prices:
    """Seconds of kernels, the ends of their 90 % intervals, and how far each lies `beyond` what was measured."""

    seconds: Array
    low: Array
    high: Array
    beyond: Array

    def of(self, which: NDArray[np.bool_] | slice) -> "Prices":
        return Prices(*(getattr(self, column.name)[which] for column in fields(Prices)))

    def with_those(self, which: NDArray[np.bool_], others: "Prices") -> "Prices":
        """These prices, but *others* for those in *which*."""
        columns = [getattr(self, column.name).copy() for column in fields(Prices)]
        for values, column in zip(columns, fields(Prices), strict=True):
            values[which] = getattr(others, column.name)
        return Prices(*columns)


@frozen(eq=False)
class Efficiency:
    """What one family of kernels, in one number format, makes of its reference time.

    `constants` are those of the family's physics.  `inputs` names what the model
    looks at, and `place` what tells where a kernel lies (`region`, `spread`):
    features of the physics, or ``log2 m`` for the shape's column m.  `rows`
    were fitted to; `error` is the mean absolute error, as a share, of rows held
    back in turn.
    """

    constants: Mapping[str, float]
    inputs: tuple[str, ...]
    model: Model
    place: tuple[str, ...]
    region: Region
    spread: Spread
    rows: int
    error: float
    source: str

    def price(self, physics: Physics, features: Sequence[str], shapes: Mapping[str, Array],
              further: float = 0.0) -> Prices:
        """Price the kernels of *physics*, all of which count as so much *further* beyond the data."""
        place = inputs_of(self.place, physics, features, shapes)
        beyond = self.region.beyond(place) + further
        seconds = physics.seconds * np.exp(self.model(inputs_of(self.inputs, physics, features, shapes)))
        low, high = self.spread.interval(place, beyond)
        return Prices(seconds, seconds * np.exp(low), seconds * np.exp(high), beyond)


def blend(inside: Prices, other: Prices) -> Prices:
    """Pass from one set of prices to another as kernels lie further beyond what the first was fitted to.

    Intervals reach as far as both do.  Prices within what was measured stay as they are, to the last bit.
    """
    outside = inside.beyond > 0
    seconds = np.where(outside, faded(inside.seconds, other.seconds, inside.beyond, np), inside.seconds)
    low = seconds * np.minimum(inside.low / inside.seconds, other.low / other.seconds)
    high = seconds * np.maximum(inside.high / inside.seconds, other.high / other.seconds)
    return Prices(seconds, np.where(outside, low, inside.low), np.where(outside, high, inside.high), inside.beyond)


def faded(inside: Any, other: Any, beyond: Any, m: Any) -> Any:
    """Seconds between those *inside* of what was measured and *other* ones, where *m* has the logarithms of either.

    At the border the first counts alone, half of the data's extent further the
    other has 63 % of the weight: constants that were measured carry further
    than those of other GPUs.
    """
    weight = m.exp(-beyond / FADING)
    return m.exp(weight * m.log(inside) + (1 - weight) * m.log(other))
