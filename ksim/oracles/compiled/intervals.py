"""What is known of an operation's result where its arguments are known to lie between bounds."""

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

__all__ = ["Interval", "decided", "interval_of"]

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
