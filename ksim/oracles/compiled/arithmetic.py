"""What no operator does, for arrays and for floats: the namespaces over which formulas are written once."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrays", "Floats"]


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
