"""Which step computed which tokens of whose prompt, found out from what batches were made of."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from attrs import define, field, frozen

from ksim.results.arrays import Ints, offsets
from ksim.results.attribution.stretches import Stints
from ksim.results.steps import Steps


@frozen(eq=False)
class Pieces:
    """`new` tokens on top of `context` that step `step` computed for a stint, before its first token or with it.

    Columns of (pieces,); `stint` is a row of `Stints`.
    """

    stint: Ints
    step: Ints
    new: Ints
    context: Ints


@define(eq=False, slots=False)
class Prefills:
    """Follows each request from chunk to chunk: the next begins where the last one ended.

    Batches forget whose tokens they are.  What one step computes whole is known; of the others, the one admitted first
    has the first chunk that fits, as the scheduler grants them.  The last piece needs no search: it is what is left, in
    the step of the first token.
    """

    steps: Steps
    _chunks: list[tuple[int, int]] = field(init=False)
    _first: list[int] = field(init=False)
    _taken: bytearray = field(init=False)

    def __attrs_post_init__(self) -> None:
        steps = self.steps
        self._chunks = list(zip(steps.chunk_tokens.tolist(), steps.chunk_context.tolist(), strict=True))
        self._first = offsets(steps.prefills).tolist()
        self._taken = bytearray(len(self._chunks))

    def pieces(self, stints: Stints) -> Pieces:
        """What is computed in each of *stints* before it has caught up, in any order."""
        at_once = stints.begin == stints.first
        several = np.flatnonzero(~at_once)
        ordered = several[np.argsort(stints.admitted[several], kind="stable")]
        whole, found = self._whole(stints, np.flatnonzero(at_once)), np.array(list(self._followed(stints, ordered)))
        columns = np.concatenate([whole, found.reshape(-1, 4)]).astype(np.int64).T.copy()
        return Pieces(*columns[:, columns[2] > 0])

    def _whole(self, stints: Stints, which: Ints) -> Ints:
        """What the stints at *which* compute in one step each: rows of stints and steps, new tokens and context."""
        step, context = stints.first[which], stints.cached[which]
        rest = stints.known[which] - context
        for row, chunk in zip(step.tolist(), zip(rest.tolist(), context.tolist(), strict=True), strict=True):
            self._take(row, chunk)
        return np.stack([which, step, np.minimum(rest, self._most[step]), context], axis=1)

    @cached_property
    def _most(self) -> Ints:
        """The largest chunk of each step, or the one token that any sequence brings."""
        steps, most = self.steps, np.ones(len(self.steps), np.int64)
        if len(self._rows):
            most[self._rows] = np.maximum.reduceat(steps.chunk_tokens, offsets(steps.prefills)[self._rows])
        return most

    @cached_property
    def _rows(self) -> Ints:
        """The steps with chunks."""
        return np.flatnonzero(self.steps.prefills)

    def _followed(self, stints: Stints, ordered: Ints) -> Iterator[tuple[int, int, int, int]]:
        """The same of those that may take several steps, in this order."""
        rows, (begin, end) = self._rows.tolist(), np.searchsorted(self._rows, [stints.begin, stints.caught_up_by])
        columns = (ordered, begin[ordered], end[ordered], stints.first[ordered], stints.cached[ordered],
                   stints.known[ordered])
        for stint, since, until, first, cached, known in zip(*(column.tolist() for column in columns), strict=True):
            computed, missed = cached, False
            for row in rows[since:until]:
                new, context = self._next(row, computed, missed)
                missed = missed or not new
                if new:
                    yield stint, row, new, context
                    computed = context + new
            if first >= 0:
                self._take(first, (known - computed, computed))
                yield stint, first, min(known - computed, int(self._most[first])), computed

    def _next(self, row: int, computed: int, missed: bool) -> tuple[int, int]:
        """The chunk in step *row* that goes on from *computed*: (new tokens, context), no tokens if there is none.

        A piece of one token looks like a decode; it may hide in a step that was *missed*.
        """
        for skipped in (0, 1) if missed else (0,):
            for place in range(self._first[row], self._first[row + 1]):
                if self._chunks[place][1] == computed + skipped and not self._taken[place]:
                    self._taken[place] = True
                    return self._chunks[place]
        return 0, computed

    def _take(self, row: int, chunk: tuple[int, int]) -> None:
        """No other stint has *chunk* of step *row*, if there is one like it."""
        for place in range(self._first[row], self._first[row + 1]):
            if self._chunks[place] == chunk and not self._taken[place]:
                self._taken[place] = True
                return
