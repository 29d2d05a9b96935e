"""Scores by how little engines have of something."""

from collections.abc import Sequence


def least_best(amounts: Sequence[float]) -> list[float]:
    """1 for the least of *amounts*, 0 for the most, in proportion between; 1 for all if they are equal."""
    least, most = min(amounts), max(amounts)
    if least == most:
        return [1.0] * len(amounts)
    spread = most - least
    return [(most - amount) / spread for amount in amounts]
