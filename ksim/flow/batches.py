"""Many batches as columns: what kernels and results count of each."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.flow.batch import Batch

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
        row, new, context = np.array(found, dtype=np.int64).reshape(-1, 3).T.copy()
        starts = np.flatnonzero(row[1:] != row[:-1]) + 1
        starts = np.concatenate(([0], starts)) if found else starts
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
class Prompts:
    """The prompt chunks of batches, in order, as columns of (prompts,): whose each is, its new tokens, and those cached
    before them; and how many each batch has, (batches,)."""

    request: Ints
    new: Ints
    context: Ints
    counts: Ints

    @classmethod
    def of(cls, batches: Sequence[Batch], counts: Ints) -> "Prompts":
        """Those of *batches*, which have so many each."""
        found = [*chain.from_iterable(map(attrgetter("prompts"), batches))]
        request, new, context = np.array(found, dtype=np.int64).reshape(-1, 3).T.copy()
        return cls(request, new, context, counts)


@frozen(eq=False)
class Batches(Sequence[Batch]):
    """Some of `batches`, and columns of (batches,): new tokens and samples; of sequences with `Batch.width` new tokens,
    how many (`decodes`), what they have cached in all (`total`), and the most of one (`longest`).

    `drafts` are drafted tokens among the new ones.  Some batches are `wide`: decodes in them have several tokens.
    """

    batches: Sequence[Batch]
    tokens: Ints
    samples: Ints
    decodes: Ints
    total: Ints
    longest: Ints
    chunks: Chunks
    prompts: Prompts
    drafts: Ints
    wide: bool = False

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "Batches":
        """Those of *batches*, counted once."""
        if isinstance(batches, Batches):
            return batches
        counts = [(batch.tokens, batch.samples, len((each := batch.contexts).offsets), each.offsets.sum,
                   each.offsets.most, each.shift, len(batch.prompts), batch.width, batch.drafts) for batch in batches]
        columns = np.array(counts, dtype=np.int64).reshape(-1, 9).T.copy()
        tokens, samples, decodes, total, longest, shift, prompts, width, drafts = columns
        return cls(
            batches=batches, tokens=tokens, samples=samples, decodes=decodes, total=total + decodes * shift,
            longest=np.where(decodes > 0, longest + shift, 0), chunks=Chunks.of(batches),
            prompts=Prompts.of(batches, prompts), drafts=drafts, wide=bool((width > 1).any()))

    @property
    def sequences(self) -> Ints:
        """How many sequences each batch has."""
        return self.decodes + self.chunks.sums(np.ones_like(self.chunks.new))

    def verifications(self, positions: int) -> Ints:
        """In column 0 how many sequences of each batch verify drafted tokens, and in column i how many of those accept
        i of them or more, up to so many *positions*: (batches, 1 + positions)."""
        counts = np.zeros((len(self), 1 + positions), dtype=np.int64)
        for row in np.flatnonzero(self.drafts).tolist():
            lengths = np.bincount(self.batches[row].accepted, minlength=1 + positions)
            counts[row] = lengths[::-1].cumsum()[::-1]
        return counts

    @property
    def encoded(self) -> Ints:
        """How many images a vision encoder computes before each batch, and how many tokens these become: (batches, 2).
        """
        return np.array([(len(batch.images), sum(image.embeds for image in batch.images)) for batch in self.batches],
                        dtype=np.int64).reshape(-1, 2)

    def of_rows(self, rows: Ints) -> "Batches":
        """Some of them."""
        return Batches.of([self.batches[row] for row in rows.tolist()])

    def capped(self, most: int) -> Ints:
        """What sequences with `Batch.width` new tokens have cached, none for more than *most*: (batches,)."""
        found = self.total.copy()
        for row in np.flatnonzero(self.longest > most).tolist():
            found[row] = self.batches[row].contexts.capped(most)
        return found

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, row: Any) -> Any:
        return self.batches[row]
