"""Which step computed which tokens of whose prompt, found out from what batches were made of."""

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from attrs import define, field, frozen

from ksim.results.attribution.stretches import Stint
from ksim.results.steps import Steps


@frozen
class Piece:
    """`new` tokens on top of `context` that step `step` computed for a stint, before its first token or with it."""

    stint: Stint
    step: int
    new: int
    context: int


@define(eq=False)
class Prefills:
    """Follows each request from chunk to chunk: the next begins where the last one ended.

    Batches forget whose tokens they are.  What one step computes whole is known; of the others, the one admitted first
    has the first chunk that fits, as the scheduler grants them.  The last piece needs no search: it is what is left, in
    the step of the first token.
    """

    steps: Steps
    _rows: list[int] = field(init=False)
    _taken: set[tuple[int, int]] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._rows = np.flatnonzero(self.steps.prefills).tolist()

    def pieces(self, stints: list[Stint]) -> Iterator[Piece]:
        """What is computed in each of *stints* before it has caught up, in any order."""
        several = []
        for stint in stints:
            if self._begin(stint) == stint.first:
                yield from self._last(stint, stint.admitted.cached)
            else:
                several.append(stint)
        for stint in sorted(several, key=lambda stint: stint.admitted.time):
            yield from self._of(stint)

    def _begin(self, stint: Stint) -> int:
        """The row of the first step of a stint."""
        event = stint.admitted
        rows = self.steps.rows(int(self.steps.places([event])[0]))
        return int(rows.start + np.searchsorted(self.steps.scheduled[rows], event.time))

    def _of(self, stint: Stint) -> Iterator[Piece]:
        computed, missed = stint.admitted.cached, False
        end = stint.first if stint.first >= 0 else stint.before
        for row in self._rows[bisect_left(self._rows, self._begin(stint)): bisect_left(self._rows, end)]:
            new, context = self._next(row, computed, missed)
            missed = missed or not new
            if new:
                yield Piece(stint, row, new, context)
                computed = context + new
        if stint.first >= 0:
            yield from self._last(stint, computed)

    def _next(self, row: int, computed: int, missed: bool) -> tuple[int, int]:
        """The chunk in step *row* that goes on from *computed*: (new tokens, context), no tokens if there is none.

        A piece of one token looks like a decode; it may hide in a step that was *missed*.
        """
        for skipped in (0, 1) if missed else (0,):
            for number, (new, context) in enumerate(self.steps.events[row].batch.chunks):
                if context == computed + skipped and (row, number) not in self._taken:
                    self._taken.add((row, number))
                    return new, context
        return 0, computed

    def _last(self, stint: Stint, computed: int) -> Iterator[Piece]:
        """What is left in the step of the first token, as far as the step's batch bears it out."""
        rest, chunks = stint.admitted.known - computed, self.steps.events[stint.first].batch.chunks
        for number, chunk in enumerate(chunks):
            if chunk == (rest, computed) and (stint.first, number) not in self._taken:
                self._taken.add((stint.first, number))
                break
        else:
            rest = min(rest, max((new for new, _ in chunks), default=1))
        if rest > 0:
            yield Piece(stint, stint.first, rest, computed)
