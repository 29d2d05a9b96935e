"""How far off an estimate may be: quantiles of what a model missed, cell by cell."""

from collections.abc import Sequence

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ksim.oracles.efficiency.physics import Array, doubles

#: The share of measurements that an interval is to hold.
COVERAGE = 0.9
#: Cells with fewer residuals than this take the quantiles of all.
FEWEST = 40
#: By how much an interval grows for what lies outside the data, per share of the data's extent.
WIDENING = 4.0


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
