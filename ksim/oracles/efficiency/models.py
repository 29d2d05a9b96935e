"""Small models of a log efficiency, fitted elsewhere and evaluated here with numpy alone.

A model takes an array of inputs, one row a kernel, and returns one number a row, which is the same to the last bit
whatever other rows there are: what is added up along a row goes through `times`.
To add one, add a frozen attrs class whose fields are arrays or models, and name it in `KINDS`.

An `Efficiency` is such a model, with where it holds, and how far off it may be.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any, Protocol

import numpy as np
from attrs import field, fields, frozen
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def doubles(value: ArrayLike) -> Array:
    """*value* as an array of double precision, whatever a file kept."""
    return np.asarray(value, dtype=np.float64)


def _nothing(names: tuple[str, ...]) -> Sequence[Array]:
    if names:
        raise KeyError(f"the family has no feature {names[0]!r}")
    return []


@frozen
class Physics:
    """The physics of many kernels; `seconds` is the reference time that a learned efficiency multiplies.

    `compute` is FLOP over the peak with wave quantisation, `memory` bytes over the bandwidth, both in seconds.  `waves`
    and `idle` describe the launch assumed, `launch` is its place in the family's `LAUNCHES`.  `features` has a row for
    each kernel and a column for each of the family's `FEATURES`, which have no dimension; `further` works out more of
    them by name, for models that use them.
    """

    seconds: Array
    compute: Array
    memory: Array
    waves: Array
    idle: Array
    launch: NDArray[np.intp]
    features: Array
    further: Callable[[tuple[str, ...]], Sequence[Array]] = _nothing


#: Rows times what each meets (points, hidden values, sides) in one go: of more, the system clears the memory each time.
PAIRS = 15_000
#: A name and its place.
_Named = tuple[int, str]
#: What an input's name begins with where it is the logarithm of a column of the shape and not a feature.
LOG = "log2 "


class EfficiencyModel(Protocol):
    def __call__(self, inputs: Array) -> Array:
        """Predict a log efficiency for each row: (rows, inputs) to (rows,)."""
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
class Perceptrons:
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
        return _chunked(self._mean, inputs, len(self._layers[1]))

    def _mean(self, inputs: Array) -> Array:
        first, first_bias, second, second_bias, last, last_bias = self._layers
        rows = (inputs - self.mean) / self.scale
        np.minimum(np.maximum(rows, -self.reach, out=rows), self.reach, out=rows)
        members, count = len(self.first), len(rows)
        hidden = times(rows, first)
        hidden += first_bias
        hidden = (np.tanh(hidden, out=hidden).reshape(count, members, 1, -1) @ second)[:, :, 0]
        hidden += second_bias
        mean: Array = times(np.tanh(hidden, out=hidden).reshape(count, -1), last) + last_bias
        return mean

    @cached_property
    def _layers(self) -> tuple[Array, Array, Array, Array, Array, float]:
        """The first layers of all members side by side, (inputs, members x hidden), and what they add; the second
        layers, and what they add; the last ones, (members x hidden,), as parts of a mean, and what that adds."""
        return (np.concatenate([*self.first[:, :-1]], axis=1), self.first[:, -1].ravel(), self.second[:, :-1],
                self.second[:, -1], self.last[:, :-1].ravel() / len(self.last), float(self.last[:, -1].mean()))


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

    base: EfficiencyModel
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
    def components(self) -> list["_KernelComponent"]:
        return [_KernelComponent.of(self, i) for i in range(len(self.amplitudes))]


@frozen(eq=False)
class _KernelComponent:
    """One component of an interpolation: a single product with `near` gives the squares of all distances.

    `seen` are the inputs that it looks at.  They are taken relative to `centre`, so that rounding loses least.
    """

    seen: NDArray[np.intp]
    lengths: Array
    centre: Array
    near: Array
    weights: Array

    @classmethod
    def of(cls, model: Interpolation, component: int) -> "_KernelComponent":
        seen = np.flatnonzero(np.isfinite(model.lengths[component]))
        lengths = model.lengths[component][seen]
        points = model.points[:, seen] / lengths
        centre = points.mean(axis=0)
        return cls(seen, lengths, centre, column_side(points - centre), model.amplitudes[component] * model.weights)

    def between(self, inputs: Array, smooth: float) -> Array:
        at = row_side(inputs[:, self.seen] / self.lengths - self.centre)
        near, weights = self.near, self.weights
        return _chunked(lambda part: times(kernel_of(times(part, near), smooth), weights), at, len(weights))


#: Models by the names that profiles have for them.
KINDS: Mapping[str, type] = {"Constant": Constant, "Linear": Linear, "Network": Perceptrons,
                             "Interpolation": Interpolation}


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


def _chunked(evaluate: Callable[[Array], Array], inputs: Array, met: int) -> Array:
    chunk = max(1, PAIRS // met)
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
    """Sort *names* by where their columns come from.

    Returns the places of those that are features and their columns among *features*; then, each with its place, those
    that are logarithms of columns of the shape, and those that the physics has to work out.
    """
    known = [place for place, name in enumerate(names) if name in features]
    rest = [(place, name) for place, name in enumerate(names) if name not in features]
    logs = [(place, name.removeprefix(LOG)) for place, name in rest if name.startswith(LOG)]
    return (known, [features.index(names[place]) for place in known], logs,
            [(place, name) for place, name in rest if not name.startswith(LOG)])


@lru_cache
def places_of(names: tuple[str, ...], features: tuple[str, ...]) -> NDArray[np.intp] | None:
    """The columns of *names* among *features*; None where one is missing."""
    return np.array([features.index(name) for name in names], dtype=np.intp) if {*names} <= {*features} else None


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
        """The distance of each row from the region, as a share of the data's extent in that direction; 0 inside.

        Where inputs go together, as sizes do in layers of one model, the data has next to no extent in some direction:
        then distances count in spreads.
        """
        stacked = self.lowest.ndim > 1
        return self._beyond(inputs) if stacked else _chunked(self._beyond, inputs, len(self.lowest))

    def _beyond(self, inputs: Array) -> Array:
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
        """The ones at *rows* of those stacked here."""
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
        """The ones at *rows* of those stacked here."""
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
    """The learned efficiency of one family of kernels in one number format, which multiplies the reference time.

    `constants` are those of the family's physics.  `inputs` names the inputs of the
    model, and `place` the columns by which `region` and `spread` place a kernel:
    features of the physics, or ``log2 m`` for the shape's column m.  `rows`
    were fitted to; `error` is the mean absolute error, as a share, of rows held
    back in turn.
    """

    constants: Mapping[str, float]
    inputs: tuple[str, ...]
    model: EfficiencyModel
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
