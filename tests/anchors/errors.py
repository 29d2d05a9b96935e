"""How far predictions are from measurements."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from attrs import frozen

DATA = Path(__file__).parents[3] / "shared" / "data"


@frozen
class Errors:
    """`mean` and `worst` of absolute errors, as shares of what was measured; `bias` of the geometric mean."""

    mean: float
    bias: float
    worst: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> "Errors":
        """Of (predicted, measured) pairs."""
        predicted, measured = np.array(list(pairs)).T
        ratio = predicted / measured
        absolute = np.abs(ratio - 1)
        return cls(float(absolute.mean()), float(np.exp(np.log(ratio).mean()) - 1), float(absolute.max()))


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a file of measurements; a test that needs one that is not there is skipped."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the measurements are not at {path}")
    return pq.read_table(path).to_pylist()
