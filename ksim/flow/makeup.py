"""What batches are made of, as columns."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.flow.batch import Batch

Ints = NDArray[np.int64]


@frozen(eq=False)
class Makeup:
    """Of each step the new tokens, samples, sequences with one new token (`decodes`) and with more (`prefills`), and
    what the former have in the cache together (`context`): columns of (steps,).

    `new` and `on` are the chunks of all steps, one after another: so many new tokens on top of so many.
    """

    tokens: Ints
    samples: Ints
    decodes: Ints
    context: Ints
    prefills: Ints
    new: Ints
    on: Ints

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "Makeup":
        """That of *batches*."""
        rows = [(batch.tokens, batch.samples, len(contexts := batch.contexts), contexts.total, len(batch.chunks))
                for batch in batches]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T.copy()
        numbers = chain.from_iterable(chain.from_iterable(batch.chunks for batch in batches))
        chunks = np.fromiter(numbers, np.int64).reshape(-1, 2).T.copy()
        return cls(*columns, *chunks)

    @classmethod
    def joined(cls, pieces: Sequence["Makeup"]) -> "Makeup":
        """All of *pieces*, one after another."""
        if len(pieces) == 1:
            return pieces[0]
        names = ("tokens", "samples", "decodes", "context", "prefills", "new", "on")
        return cls(*(np.concatenate([np.zeros(0, np.int64), *(getattr(piece, name) for piece in pieces)])
                     for name in names))
