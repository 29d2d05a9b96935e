"""Many batches as columns: what kernels count of each."""

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.flow.batch import Batch, Contexts

Ints = NDArray[np.int64]


@frozen(eq=False)
class Chunks:
    """The chunks of batches, in order, as columns of (chunks,): their new tokens and those that they have in the cache.

    `rows` are the batches with any, and `starts` is where the chunks of each begin.
    """

    new: Ints
    context: Ints
    rows: Ints
    starts: Ints
    batches: int

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "Chunks":
        found = [(row, new, context) for row, batch in enumerate(batches) if batch.chunks
                 for new, context in batch.chunks]
        row, new, context = np.array(found, dtype=np.int64).reshape(-1, 3).T
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        return cls(new, context, row[starts], starts, len(batches))

    def sums(self, values: Ints) -> Ints:
        """*values* of (chunks,) added up in each batch: (batches,)."""
        return self._spread(np.add, values)

    def most(self, values: Ints) -> Ints:
        """The largest of *values* of (chunks,) in each batch, 0 where it has none: (batches,)."""
        return self._spread(np.maximum, values)

    def _spread(self, operation: np.ufunc, values: Ints) -> Ints:
        found = np.zeros(self.batches, dtype=np.int64)
        if len(values):
            found[self.rows] = operation.reduceat(values, self.starts)
        return found


@frozen(eq=False)
class Batches:
    """Columns of (batches,) over sequences with one new token: how many, what they have cached, and the most of one."""

    contexts: Sequence[Contexts]
    decodes: Ints
    total: Ints
    longest: Ints
    chunks: Chunks

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "Batches":
        contexts = [batch.contexts for batch in batches]
        several = len(contexts)
        offsets = [each.offsets for each in contexts]
        shift = np.fromiter((each.shift for each in contexts), np.int64, several)
        decodes = np.fromiter(map(len, offsets), np.int64, several)
        total = np.fromiter((each.sum for each in offsets), np.int64, several) + decodes * shift
        longest = np.fromiter((each.most for each in offsets), np.int64, several) + shift
        return cls(contexts, decodes, total, np.where(decodes > 0, longest, 0), Chunks.of(batches))

    def capped(self, most: int) -> Ints:
        """What sequences with one new token have cached where none counts for more than *most*: (batches,)."""
        found = self.total.copy()
        for row in np.flatnonzero(self.longest > most).tolist():
            found[row] = self.contexts[row].capped(most)
        return found

    def __len__(self) -> int:
        return len(self.contexts)
