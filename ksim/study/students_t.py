"""Student's t, by which intervals of the means of a few replications are made."""

from functools import lru_cache
from math import cos, pi, sin, sqrt, tan

#: Halvings of an angle until its quantile is as exact as a float.
_HALVINGS = 60


@lru_cache(maxsize=256)
def student(probability: float, freedom: int) -> float:
    """The quantile of Student's t with so many degrees of *freedom*, by halving the range of its distribution."""
    low, high = -pi / 2, pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, freedom) < probability else (low, middle)
    return sqrt(freedom) * tan((low + high) / 2)


def _below(angle: float, freedom: int) -> float:
    """The probability of values below sqrt(freedom) x tan(angle).

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    odd = freedom % 2
    term, total = cos(angle) if odd else 1.0, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power + 1) / (power + 2)
    inside = 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
    return (1 + inside) / 2
