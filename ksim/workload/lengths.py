"""Lengths of real requests: tables of quantiles, and the traces themselves."""

from collections.abc import Mapping
from itertools import repeat
from pathlib import Path
from typing import Literal

import numpy as np
from attrs import field, frozen
from attrs.validators import gt
from numpy.typing import NDArray

from ksim.foundation.catalog import load
from ksim.foundation.config import structure
from ksim.foundation.errors import DataError
from ksim.workload.reading import read

#: Which of the two lengths of a request.
Side = Literal["prompt", "output"]


@frozen
class LengthTable:
    """Quantiles of the lengths of a trace, one a probability, with the burstiness and rate of its arrivals.

    `burstiness` is the shape of the gamma distribution whose gaps vary as
    those of the trace do, 1 / (standard deviation / mean)^2; `rate` is in
    requests/s, and `requests` were measured.
    """

    source: str
    licence: str
    requests: int = field(validator=gt(0))
    rate: float = field(validator=gt(0))
    burstiness: float = field(validator=gt(0))
    probabilities: tuple[float, ...]
    prompt: tuple[float, ...]
    output: tuple[float, ...]
    note: str = ""

    def __attrs_post_init__(self) -> None:
        for name, values in (("probabilities", self.probabilities), ("prompt", self.prompt), ("output", self.output)):
            if len(values) != len(self.probabilities) or list(values) != sorted(values):
                raise ValueError(f"{name} must be as many as there are probabilities, in rising order")
        if len(self.probabilities) < 2 or (self.probabilities[0], self.probabilities[-1]) != (0, 1):
            raise ValueError("probabilities must run from 0 to 1")

    @classmethod
    def named(cls, name: str) -> "LengthTable":
        """Return table *name* of ksim/data/lengths, or the .toml file of that path.

        Raises UnknownName, DataError or ConfigError for one that is not there or not right.
        """
        return structure(cls, load("lengths", name), f"lengths/{name}")


def recorded_lengths(path: Path, format: str, side: Side, columns: Mapping[str, str] | None = None,
                     empty: str | None = None) -> NDArray[np.float64]:
    """Return the lengths of all rows of a trace, in order of arrival; raise DataError where it has none."""
    rows = read(path, format, columns=columns, empty=empty, arrivals=repeat(0.0))
    lengths = np.fromiter((getattr(row, side) for row in rows), dtype=np.float64)
    if not len(lengths):
        raise DataError(str(path), "has no request with tokens")
    return lengths
