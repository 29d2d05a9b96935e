"""Streaming summaries of whole numbers."""

from collections import Counter

import numpy as np
from attrs import define, field, frozen

#: The probabilities of `Summary.quantiles`: every hundredth, and two more in the tail.
PROBABILITIES = tuple(sorted({*(percent / 100 for percent in range(101)), 0.995, 0.999}))


@frozen
class Summary:
    """How many whole numbers there are, their sum, mean and quantiles; between two of them it is interpolated."""

    count: int
    total: int
    mean: float
    quantiles: tuple[float, ...]

    def at(self, probability: float) -> float:
        """Return the quantile at one of `PROBABILITIES`; raise ValueError for any other."""
        return self.quantiles[PROBABILITIES.index(probability)]

    def row(self) -> dict[str, float]:
        """Return the mean and the usual quantiles by name."""
        names = {"min": 0.0, "p1": 0.01, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
        return {"mean": self.mean} | {name: self.at(probability) for name, probability in names.items()}


@define
class Tally:
    """Counts each whole number that occurs: memory grows with their variety, not with how many there are."""

    counts: Counter[int] = field(factory=Counter)

    def add(self, value: int) -> None:
        self.counts[value] += 1

    def summary(self) -> Summary:
        """Summarise what was added, which must not be nothing."""
        values = np.array(sorted(self.counts))
        upto = np.cumsum([self.counts[value] for value in values.tolist()])
        total = sum(value * times for value, times in self.counts.items())
        rank = np.array(PROBABILITIES) * (upto[-1] - 1)
        low = values[np.searchsorted(upto, np.floor(rank), side="right")]
        high = values[np.searchsorted(upto, np.ceil(rank), side="right")]
        quantiles = low + (high - low) * (rank - np.floor(rank))
        return Summary(int(upto[-1]), total, total / int(upto[-1]), tuple(quantiles.tolist()))
