"""Whose a step's GPU seconds are: those of decodes, or those of prompts, kernel family by kernel family."""

from functools import cached_property
from typing import TypeVar

import numpy as np
from attrs import define, frozen

from ksim.flow.batch import Batch
from ksim.flow.timeline import Span
from ksim.results.arrays import Floats, Ints, each, ints, shares
from ksim.results.history import History
from ksim.results.kernels import seconds_of
from ksim.results.occurrences import Occurrences

#: The family of all that GPUs send each other.
COMMUNICATION = "communication"
#: Families whose work grows with what sequences have in the cache, and not only with new tokens.
_ATTENTION = frozenset({"attention", "mla", "sparse_mla", "index_scores"})
#: One that reads a number for each (query, key) pair, however fast.
_OF_PAIRS = "index_topk"
#: What a family is shared by: new tokens; (query, key) pairs; keys read.
TOKENS, PAIRS, KEYS = range(3)


#: One number, or many.
N = TypeVar("N", int, Ints)


def sizes(new: N, context: N) -> tuple[N, N, N]:
    """The tokens, pairs and keys of a sequence with *new* tokens on top of *context* in the cache; of many at once."""
    return new, new * context + new * (new + 1) // 2, context + new


@frozen
class Part:
    """Kernels of one family that are shared alike."""

    family: str
    by: int

    @classmethod
    def of(cls, span: Span) -> "Part":
        """Attention is shared by pairs where arithmetic bounds it, by keys where it reads them; all else by tokens."""
        if span.group:
            return cls(COMMUNICATION, TOKENS)
        if span.family == _OF_PAIRS:
            return cls(span.family, PAIRS)
        if span.family in _ATTENTION:
            return cls(span.family, PAIRS if span.bound == "compute" else KEYS)
        return cls(span.family, TOKENS)


@define(eq=False, slots=False)
class Shares:
    """The GPU seconds of each step by `parts`, (steps, parts), and which share of them its prompts have.

    They are those of one rank of each pipeline stage, added up over the stages.
    """

    history: History
    occurrences: Occurrences

    def __attrs_post_init__(self) -> None:
        self.parts, self.seconds = seconds_of(self.history, self.occurrences, Part.of)
        self.by = each(self.parts, lambda part: part.by)

    @cached_property
    def families(self) -> list[str]:
        """The families, communication last whether there is any or not."""
        return [*sorted({part.family for part in self.parts} - {COMMUNICATION}), COMMUNICATION]

    @cached_property
    def family(self) -> Ints:
        """Which of `families` each part is of."""
        return each(self.parts, lambda part: self.families.index(part.family))

    @cached_property
    def prompts(self) -> Floats:
        """Which share of each part the chunks of each step have: (steps, parts)."""
        return shares(self.chunks.astype(np.float64), self.totals)[:, self.by]

    @cached_property
    def chunks(self) -> Ints:
        """Tokens, pairs and keys of the chunks of each step: (steps, 3)."""
        found = np.zeros((len(self.history.steps), 3), dtype=np.int64)
        for row, step in enumerate(self.history.steps.events):
            if step.batch.chunks:
                found[row] = _of_chunks(step.batch)
        return found

    @cached_property
    def totals(self) -> Ints:
        """The same of all sequences of each step."""
        steps = self.history.steps
        keys = ints(steps.events, "batch.contexts.total") + steps.decodes
        return self.chunks + np.stack([steps.decodes, keys, keys], axis=1)

    def of(self, row: int, new: int, context: int) -> Floats:
        """Which share of each part of step *row* is that of *new* tokens on top of *context* tokens."""
        own = np.array(sizes(new, context))[self.by]
        return np.asarray(np.minimum(1.0, own / np.maximum(self.totals[row], 1)[self.by]))


def _of_chunks(batch: Batch) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(sizes(new, context) for new, context in batch.chunks), strict=True)))

