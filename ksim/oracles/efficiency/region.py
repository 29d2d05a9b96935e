"""Where measurements lie: a convex region around them, and how far outside it something is."""

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ksim.oracles.efficiency.physics import Array, doubles

#: A float32 file rounds its bounds: what is no further outside than this, as a share of the extent, is inside.
BORDER = 1e-5


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
