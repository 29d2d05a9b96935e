"""Arithmetic on arrays, floats and intervals: namespaces for formulas that are written once, and bounds of results.

A namespace has what no operator does.  Where the arguments of an operation are known to lie in intervals, so is its
result, and comparisons may be decided.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrays", "Floats", "Interval", "decided", "interval_of"]

#: The least and the most that something may be.
Interval = tuple[float, float]

UNBOUNDED: Interval = (-math.inf, math.inf)
#: What does not fall when any of its arguments grows.
GROWING: Mapping[str, Callable[..., float]] = {
    "+": lambda one, other: one + other, "minimum": min, "maximum": max, "ceil": lambda one: _whole(math.ceil, one),
    "floor": lambda one: _whole(math.floor, one)}
#: What changes nothing on either side, and what does not on the right.
NOTHING: Mapping[str, float] = {"+": 0, "*": 1, "&": True}
NOTHING_RIGHT: Mapping[str, float] = {"-": 0, "/": 1, "**": 1}
#: What is true or false.
TRUTHS = frozenset(("<", "<=", "==", "&"))


class Arrays:
    """The operations that differ between arrays and floats."""

    ceil, floor, log2, minimum, maximum, where = np.ceil, np.floor, np.log2, np.minimum, np.maximum, np.where

    @staticmethod
    @lru_cache(maxsize=4096)
    def constant(number: float) -> NDArray[np.float64]:
        """What `stage` writes for a *number*: operations on it are half as long again where it is one of Python's."""
        return np.asarray(number, dtype=np.float64)

    @staticmethod
    def look_up(table: NDArray[np.float64], row: Any, column: Any) -> Any:
        return table[np.asarray(row, np.intp), np.asarray(column, np.intp)]


class Floats:
    """The same on floats: a serving simulation prices one new batch a step, where arrays cost ten times as much."""

    ceil, floor, log2, minimum, maximum = math.ceil, math.floor, math.log2, min, max
    #: How `stage` writes down what it need not call.
    inline: ClassVar[Mapping[str, str]] = {
        "minimum": "{1} if {1} < {0} else {0}", "maximum": "{1} if {1} > {0} else {0}", "where": "{1} if {0} else {2}",
        "look_up": "{0}.item(int({1}), int({2}))", "&": "{0} and {1}"}

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        return yes if condition else no

    @staticmethod
    def look_up(table: NDArray[np.float64], row: Any, column: Any) -> Any:
        return float(table[int(row), int(column)])


def interval_of(operation: str, *between: Interval) -> Interval:
    """Where the result of *operation* lies for arguments *between* these; that of a table lies between its entries."""
    if operation in TRUTHS:
        return False, True
    least, most = zip(*between, strict=True)
    if operation in GROWING:
        return GROWING[operation](*least), GROWING[operation](*most)
    if operation == "where":
        return min(least[1:]), max(most[1:])
    if operation == "look_up":
        return between[0]
    if len(between) == 2 and all(map(math.isfinite, (*least, *most))):
        return _of_two(operation, *between)
    return UNBOUNDED


def _of_two(operation: str, one: Interval, other: Interval) -> Interval:
    if operation == "-":
        return one[0] - other[1], one[1] - other[0]
    if operation == "*":
        corners = [first * second for first, second in product(one, other)]
        return min(corners), max(corners)
    if operation == "/" and not other[0] <= 0 <= other[1]:
        corners = [first / second for first, second in product(one, other)]
        return min(corners), max(corners)
    if operation == "**" and one[0] >= 0 and other[0] == other[1] > 0:
        return float(one[0]) ** other[0], float(one[1]) ** other[0]
    return UNBOUNDED


def _whole(rounded: Callable[[float], int], number: float) -> float:
    return rounded(number) if math.isfinite(number) else number


def decided(operation: str, arguments: tuple[Any, ...], between: tuple[Interval, ...]) -> Any:
    """What *operation* gives on *arguments* that lie *between* these: a number, or one of them; else None."""
    if operation == "where":
        return _branch(between[0], *arguments)
    if len(arguments) != 2:
        return None
    (first, second), (one, other) = arguments, between
    if operation in ("minimum", "maximum"):
        return _chosen(operation, first, second, one, other)
    if operation in ("<", "<=", "=="):
        return _compared(operation, one, other)
    return _without_effect(operation, first, second, one, other)


def _branch(condition: Interval, _: Any, yes: Any, no: Any) -> Any:
    return yes if condition[0] > 0 or yes is no else no if condition[1] <= 0 else None


def _chosen(operation: str, first: Any, second: Any, one: Interval, other: Interval) -> Any:
    larger, smaller = (first, second) if operation == "maximum" else (second, first)
    return larger if one[0] >= other[1] else smaller if other[0] >= one[1] else None


def _compared(operation: str, one: Interval, other: Interval) -> bool | None:
    if operation == "==":
        return False if one[1] < other[0] or other[1] < one[0] else None
    if one[1] < other[0] or (operation == "<=" and one[1] == other[0]):
        return True
    return False if one[0] > other[1] or (operation == "<" and one[0] == other[1]) else None


def _without_effect(operation: str, first: Any, second: Any, one: Interval, other: Interval) -> Any:
    nothing = NOTHING.get(operation)
    if other == (nothing, nothing) or other == (NOTHING_RIGHT.get(operation),) * 2:
        return first
    if one == (nothing, nothing):
        return second
    if operation in ("*", "&") and (0, 0) in (one, other) and all(map(math.isfinite, (*one, *other))):
        return 0
    if operation == "/" and not other[0] <= 0 <= other[1]:
        return 1 if first is second else 0 if one == (0, 0) else None
    return None
