"""The costs of each rank's expert kernels in each layer, where the rows of experts are drawn.

A step of a large mixture has thousands of different sets of rows, so most are interpolated.  What a grouped product
takes depends on the rows of the rank, its experts that have some, the rows of the fullest of these, and the tiles that
rows fill: tiles have one height, which the oracle names, and each expert's last tile may be part empty.  These four
numbers span a grid, whose corners are priced by the timer's oracle once a point is among them.  Kernels that only move
rows depend on their number alone.

Tokens are rounded to 64 numbers an octave: prices of grids belong to one number of tokens, because kernels are chosen
by it.  Up to 128 tokens, that is each number.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ksim.compute.expert_draws import mixture_layers
from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.basic import GroupedGemm
from ksim.compute.model import routed
from ksim.compute.notation import Operation
from ksim.compute.sizes import MeanExpertRows, Sizes
from ksim.cost.step import StepTimer
from ksim.flow.costs import Scalable
from ksim.specs.shard import Shard

if TYPE_CHECKING:
    from ksim.compute.expert_draws import Drawn

__all__ = ["ExpertCosts", "ExpertTimes"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The numbers of `ExpertCosts`, in the order of their columns in tables.
_NUMBERS = ("seconds", "joules", "compute_bound", "sm_action_joules", "sm_active_joules", "compute_bound_joules")
#: Numbers of tokens in an octave, and the most tables of prices that are kept.
_OCTAVE, _MOST = 64, 128
#: The height of tiles where the oracle names no launch.
_HEIGHT = 64
#: The share of an expert that stands for the fullest one in a corner of the grid, so that its rows add next to nothing.
_TRACE = 1e-3


def _geometric(exact: int, ratio: float, most: float) -> Floats:
    """Whole numbers: each up to *exact*, then by *ratio*, up to *most*."""
    count = int(np.log(most / exact) / np.log(ratio))
    return np.unique(np.concatenate([np.arange(1, exact + 1), np.round(exact * ratio ** np.arange(1, count + 1))]))


#: The axes of the grid: rows, active experts, the part of a tile that an expert's last one leaves empty, and the rows
#: of the fullest expert over the mean.  They reach further than any rank does.
_ROWS, _ACTIVE = _geometric(8, 1.2, 1e9), _geometric(16, 1.15, 1e5)
_EMPTY = np.linspace(0.0, 1.0, 5)
_FULLEST = np.concatenate([[1.0, 1.1], 1.25 ** np.arange(1.0, 52.0)])
_AXES = (_ROWS, _ACTIVE, _EMPTY, _FULLEST)


@frozen(eq=False)
class ExpertCosts(Scalable):
    """The costs of the expert kernels of each rank in each layer, at the boost clock: arrays of (layers, ranks).

    Joules are beyond idle power; `compute_bound` are the seconds that the SM clock paces.
    """

    seconds: Floats
    joules: Floats
    compute_bound: Floats
    sm_action_joules: Floats
    sm_active_joules: Floats
    compute_bound_joules: Floats


@define(eq=False)
class ExpertTimes:
    """Prices the kernels of `timer` that depend on the rows of experts; the layers are those of `mixture_layers`.

    Prices of equal layers are shared, and kept.
    """

    timer: StepTimer
    _tables: "dict[tuple[int, int], _Layer]" = field(factory=dict, init=False, repr=False)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of the launches that depend on the rows of experts."""
        prefix = getattr(self.timer.model, "prefix", "")
        return tuple(dict.fromkeys(prefix + label for kind, _ in self._kinds for label in kind.labels))

    def seconds(self, drawn: "Drawn") -> Floats:
        """The seconds of each rank in each layer at the boost clock: (layers, ranks)."""
        return self.costs(drawn).seconds

    def costs(self, drawn: "Drawn") -> ExpertCosts:
        """The costs of each rank in each layer; a rank without rows launches nothing.

        Raises ValueError for rows of other layers than the timer's.
        """
        layers, ranks, _ = drawn.slots.shape
        if layers != len(mixture_layers(self.timer.model, self.timer.shard)):
            raise ValueError(f"rows of {layers} layers are not those of the timer's stage")
        costs = np.empty((layers, ranks, len(_NUMBERS)))
        for number, (_, places) in enumerate(self._kinds):
            slots = drawn.slots[places].reshape(len(places) * ranks, -1)
            costs[places] = self._layer(number, drawn.tokens).costs(slots).reshape(len(places), ranks, -1)
        return ExpertCosts(*np.moveaxis(costs, 2, 0))

    @cached_property
    def _kinds(self) -> "list[tuple[_Kind, list[int]]]":
        """The different layers, and the places of those of each kind."""
        model, shard = self.timer.model, self.timer.shard
        places: dict[int, list[int]] = {}
        layers: dict[int, Sequence[Operation]] = {}
        for place, number in enumerate(mixture_layers(model, shard)):
            layer = model.decoder.layers[number]
            layers[id(layer)] = layer
            places.setdefault(id(layer), []).append(place)
        return [(_Kind.of(layers[key], self._sizes(1), shard), where) for key, where in places.items()]

    def _sizes(self, tokens: int) -> Sizes:
        decoder, data = self.timer.model.decoder, self.timer.shard.data
        step = {"t": max(1, tokens // data), "T": tokens, "top_k": decoder.top_k}
        return Sizes({**decoder.sizes, **step})

    def _layer(self, kind: int, tokens: int) -> "_Layer":
        unit = 1 << max(0, tokens.bit_length() - _OCTAVE.bit_length())
        tokens = max(1, round(tokens / unit) * unit)
        if (kind, tokens) not in self._tables:
            if len(self._tables) >= _MOST:
                self._tables.clear()
            self._tables[kind, tokens] = _Layer(self._kinds[kind][0], self._sizes(tokens), self.timer)
        return self._tables[kind, tokens]


#: A launch: its label, and its kernel.
_Launch = tuple[str, Kernel]


@frozen
class _Kind:
    """The operations of a layer whose launches called `labels` depend on the rows of experts."""

    operations: tuple[Operation, ...]
    labels: tuple[str, ...]
    shard: Shard

    @classmethod
    def of(cls, layer: Iterable[Operation], sizes: Sizes, shard: Shard) -> "_Kind":
        """Compare the launches of each operation of *layer* for one row and for four."""
        operations, labels = list[Operation](), list[str]()
        for operation in layer:
            one, four = (operation.lower(routed(sizes, rows), shard) for rows in (((1, 1),), ((2, 2),)))
            found = [op.label for op, other in zip(one, four, strict=True)
                     if op.kernel != other.kernel and not isinstance(op.kernel, Collective)]
            operations += [operation] if found else []
            labels += found
        return cls(tuple(operations), tuple(labels), shard)

    def launches(self, sizes: Sizes, rows: MeanExpertRows, grouped: bool) -> Iterator[_Launch]:
        """The grouped products, or the other launches, where experts have *rows*."""
        for operation in self.operations:
            for op in operation.lower(routed(sizes, rows), self.shard):
                kernel: Any = op.kernel
                if op.label in self.labels and isinstance(kernel, GroupedGemm) == grouped:
                    yield op.label, kernel


@define(eq=False)
class _Layer:
    """Prices of a `kind` of layer at one number of tokens, which `sizes` has."""

    kind: _Kind
    sizes: Sizes
    timer: StepTimer
    _grids: "dict[int, _Grid] | None" = field(default=None, init=False)
    _moves: Floats = field(factory=lambda: np.full((len(_ROWS), len(_NUMBERS)), np.nan), init=False)

    def costs(self, slots: Ints) -> Floats:
        """The costs of sets of rows, (sets, slots), as (sets, numbers)."""
        rows = slots.sum(axis=1)
        some = rows > 0
        if not some.any():
            return np.zeros((len(slots), len(_NUMBERS)))
        if self._grids is None:
            self._grids = self._by_height(int(rows.max()), int(np.count_nonzero(slots[rows.argmax()])))
        held = np.maximum(rows, 1)
        total = self._moved(held)
        for height, grid in self._grids.items():
            total += grid.at(_points(slots, held, height))
        total[~some] = 0.0
        return total

    def _by_height(self, rows: int, active: int) -> "dict[int, _Grid]":
        """A grid for the grouped products of each height of tiles, which the oracle takes for as many rows."""
        found: dict[int, list[str]] = {}
        spread = _spread((rows, active, 0.5, 1.0), _HEIGHT)
        launches = [*self.kind.launches(self.sizes, spread, grouped=True)]
        for (label, _), cost in zip(launches, self.timer.pricer.kernels(launches), strict=True):
            height = cost.launch.partition("x")[0]
            found.setdefault(int(height) if height.isdigit() else _HEIGHT, []).append(label)
        return {height: _Grid(self._corner_pricer(height, labels)) for height, labels in found.items()}

    def _corner_pricer(self, height: int, labels: Sequence[str]) -> "Callable[[Sequence[Corner]], Floats]":
        """What prices the products of these *labels* at many corners of a grid in one question."""
        def price(corners: "Sequence[Corner]") -> Floats:
            launches = [launch for corner in corners
                        for launch in self.kind.launches(self.sizes, _spread(corner, height), grouped=True)
                        if launch[0] in labels]
            numbers: Floats = self._numbers(launches).reshape(len(corners), len(labels), -1).sum(axis=1)
            return numbers
        return price

    def _moved(self, rows: Ints) -> Floats:
        """The costs of the kernels that depend on the number of rows alone."""
        left, share = _along(_ROWS, rows)
        right = left + (share > 0)
        asked = np.unique(np.concatenate([left, right]))
        if len(new := asked[np.isnan(self._moves[asked, 0])]):
            launches = [launch for node in new
                        for launch in self.kind.launches(self.sizes, ((int(_ROWS[node]), 1),), grouped=False)]
            self._moves[new] = self._numbers(launches).reshape(len(new), -1, len(_NUMBERS)).sum(axis=1)
        moved: Floats = (1 - share)[:, None] * self._moves[left] + share[:, None] * self._moves[right]
        return moved

    def _numbers(self, launches: Sequence[_Launch]) -> Floats:
        costs = [cost.costs for cost in self.timer.pricer.kernels(launches)]
        numbers: Floats = np.array([[getattr(cost, name) for name in _NUMBERS] for cost in costs])
        return numbers.reshape(-1, len(_NUMBERS))


#: Rows, active experts, the empty part of last tiles, and the rows of the fullest expert over the mean.
Corner = tuple[float, float, float, float]


def _points(slots: Ints, rows: Ints, height: int) -> Floats:
    """Where sets of rows, (sets, slots), lie in a grid of tiles of *height*: (axes, sets)."""
    active = np.maximum(np.count_nonzero(slots, axis=1), 1)
    tiles = (-(-slots // height)).sum(axis=1)
    mean = rows / active
    fewest = np.maximum(1.0, mean / height)
    most = (mean + height - 1) / height
    empty = np.clip((tiles / active - fewest) / np.maximum(most - fewest, 1e-9), 0.0, 1.0)
    return np.stack([rows.astype(np.float64), active, empty, np.maximum(slots.max(axis=1) / mean, 1.0)])


def _spread(corner: Corner, height: int) -> MeanExpertRows:
    """Rows of experts, some of them fractions of experts, that lie so in the grid.

    Their sums are exact but for a corner with fewer rows than experts, which gets one each.
    """
    active, empty = corner[1:3]
    rows = max(corner[0], active)
    largest = int(min(round(corner[3] * rows / active), rows))
    fewest, most = max(1.0, rows / active / height), (rows / active + height - 1) / height
    tiles = active * (fewest + empty * (most - fewest))
    rest = _filled_up(rows - _TRACE * largest, active - _TRACE, tiles - _TRACE * -(-largest // height), height)
    return ((largest, _TRACE), *rest) if largest > rest[0][0] else _filled_up(rows, active, tiles, height)


def _filled_up(rows: float, active: float, tiles: float, height: int) -> MeanExpertRows:
    """So many *rows* of so many experts in so many tiles, experts as alike as can be."""
    mean, each = rows / active, max(tiles / active, 1.0)
    less = int(each)
    more = each - less  # the share of experts that have a tile more than `less`
    small, large = mean, mean
    if more > 1e-9:
        lowest, border = (less - 1) * height + 1.0, less * height
        small = min(max((mean - more * (border + 1)) / (1 - more), lowest), border)
        large = (mean - (1 - more) * small) / more
    found: dict[int, float] = {}
    for size, count in ((small, (1 - more) * active), (large, more * active)):
        whole = int(size)
        for number, part in ((whole, count * (1 - size + whole)), (whole + 1, count * (size - whole))):
            if part > 1e-9:
                found[number] = found.get(number, 0.0) + part
    return tuple(sorted(found.items(), reverse=True))


def _along(axis: Floats, values: Any) -> tuple[Ints, Floats]:
    """The place of the next lower node of *axis*, and how far each of *values* is on the way to the one above."""
    place = np.searchsorted(axis, values, side="right") - 1
    step = axis[np.minimum(place + 1, len(axis) - 1)] - axis[place]
    return place, (values - axis[place]) / np.maximum(step, 1e-12)  # the last node has none above it


@define(eq=False)
class _Grid:
    """Interpolates linearly along each axis; `price` is asked about corners, (corners, numbers), once for each."""

    price: Callable[[Sequence[Corner]], Floats]
    _corners: dict[tuple[int, int, int, int], Floats] = field(factory=dict, init=False)
    _keys: Ints = field(factory=lambda: np.empty(0, dtype=np.int64), init=False)
    _values: Floats = field(factory=lambda: np.empty((0, 2 ** len(_AXES), len(_NUMBERS))), init=False)

    def at(self, points: Floats) -> Floats:
        """The numbers at *points*, (axes, points): (points, numbers)."""
        places, shares = zip(*(_along(axis, values) for axis, values in zip(_AXES, points, strict=True)),
                             strict=True)
        keys = np.zeros(points.shape[1], dtype=np.int64)
        for place, share in zip(places, shares, strict=True):
            keys = keys * 512 + 2 * place + (share > 0)
        cells = np.searchsorted(self._keys, keys)
        known = self._keys[np.minimum(cells, len(self._keys) - 1)] == keys if len(self._keys) else np.zeros(1, bool)
        if not known.all():
            self._add(np.setdiff1d(keys, self._keys))
            cells = np.searchsorted(self._keys, keys)
        weights = np.ones((1, points.shape[1]))
        for share in shares:
            weights = (weights[:, None] * np.stack([1 - share, share])).reshape(-1, points.shape[1])
        values: Floats = np.einsum("cp,pcn->pn", weights, self._values[cells], optimize=False)
        return values

    def _add(self, keys: Ints) -> None:
        """Price the corners of cells that are new."""
        cells = [self._cell(key) for key in keys.tolist()]
        new = list(dict.fromkeys(corner for cell in cells for corner in cell if corner not in self._corners))
        prices = self.price([(float(_ROWS[rows]), float(_ACTIVE[active]), float(_EMPTY[empty]),
                              float(_FULLEST[fullest])) for rows, active, empty, fullest in new]) if new else ()
        self._corners.update(zip(new, prices, strict=True))
        values = np.array([[self._corners[corner] for corner in cell] for cell in cells])
        order = np.argsort(joined := np.concatenate([self._keys, keys]))
        self._keys, self._values = joined[order], np.concatenate([self._values, values])[order]

    @staticmethod
    def _cell(key: int) -> list[tuple[int, int, int, int]]:
        """The corners of a cell; one that lies on a node of an axis has no further corner along it."""
        packed = [key // 512**power % 512 for power in (3, 2, 1, 0)]
        rows, active, empty, fullest = ((each // 2, each // 2 + each % 2) for each in packed)
        return [*product(rows, active, empty, fullest)]
