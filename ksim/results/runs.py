"""Runs of tokens as arrays."""

import numpy as np
from attrs import frozen

from ksim.results.arrays import Ints, offsets


@frozen(eq=False)
class Runs:
    """Tokens of the request at `row`, one from each of the steps `first`, `first` + `every`, ..., `last`: columns."""

    row: Ints
    first: Ints
    last: Ints
    every: Ints

    @property
    def counts(self) -> Ints:
        """The number of tokens of each run."""
        return (self.last - self.first) // self.every + 1

    def place(self, row: Ints, step: Ints) -> Ints:
        """The place among all tokens of the first token that each request at *row* got from *step* or later."""
        scale = 1 + int(max(self.last.max(initial=0), step.max(initial=0)))
        run = np.searchsorted(self.row * scale + self.first, row * scale + step) - 1
        counts, first = np.append(self.counts, 0), offsets(self.counts)
        own = np.append(self.row, -1)[run] == row
        passed = -((np.append(self.first, 0)[run] - step) // np.append(self.every, 1)[run])
        return first[run + 1] - np.where(own, np.maximum(counts[run] - passed, 0), 0)
