"""The shares of a step's GPU seconds that belong to decodes and to prompts, by kernel family."""

from functools import cached_property

import numpy as np
from attrs import define, frozen

from ksim.flow.kernels import KernelKind
from ksim.results.arrays import Floats, Ints, each, offsets, shares
from ksim.results.attribution.stretches import Stretches
from ksim.results.history import History
from ksim.results.kernel_usage import KernelUsage

#: The family of all communication between GPUs.
COMMUNICATION = "communication"
#: Families whose work grows with the cached tokens of sequences, not only with new tokens.
_ATTENTION = frozenset({"attention", "mla", "sparse_mla", "compressed_mla", "block_sparse",
                        "index_scores"})
#: A family that reads a number for each (query, key) pair, whatever its bound.
_OF_PAIRS = "index_topk"
#: Kernels of experts, which compute on the tokens of all data-parallel ranks (compute/blocks.py, `experts`).
EXPERTS = frozenset({"topk", "experts_gate_up", "experts_act", "experts_down", "combine"})
#: What a family is shared by: new tokens; (query, key) pairs; keys read.
TOKENS, PAIRS, KEYS = range(3)


def sizes(new: Ints, context: Ints) -> tuple[Ints, Ints, Ints]:
    """The tokens, (query, key) pairs and keys of sequences with *new* tokens after *context* cached ones."""
    return new, new * context + new * (new + 1) // 2, context + new


@frozen
class Part:
    """Kernels of one family that are shared in the same way.

    `by` is TOKENS, PAIRS or KEYS.  *pooled* kernels work for the tokens of all data-parallel ranks.
    """

    family: str
    by: int
    pooled: bool = False

    @classmethod
    def of(cls, kind: KernelKind) -> "Part":
        """Attention is shared by pairs where arithmetic bounds it, by keys where it reads them; all else by tokens."""
        if kind.group:
            return cls(COMMUNICATION, TOKENS)
        if kind.family == _OF_PAIRS:
            return cls(kind.family, PAIRS)
        if kind.family in _ATTENTION:
            return cls(kind.family, PAIRS if kind.bound == "compute" else KEYS)
        return cls(kind.family, TOKENS, pooled=kind.label.rpartition(".")[2] in EXPERTS)


@define(eq=False, slots=False)
class Shares:
    """The GPU seconds of each step by `parts`, (steps, parts), and the share that belongs to prompts.

    They are those of one rank of each pipeline stage, added up over the stages.
    """

    history: History
    usage: KernelUsage

    def __attrs_post_init__(self) -> None:
        self.parts, self.seconds = self.usage.seconds_by(Part.of)
        self.by = each(self.parts, lambda part: part.by)

    @cached_property
    def families(self) -> list[str]:
        """The families; communication is last, even if there is none."""
        return [*sorted({part.family for part in self.parts} - {COMMUNICATION}), COMMUNICATION]

    @cached_property
    def family(self) -> Ints:
        """The place in `families` of each part."""
        return each(self.parts, lambda part: self.families.index(part.family))

    def prompts(self, steps: Ints) -> Floats:
        """The share of each part that belongs to the prompt chunks of *steps*: (steps, parts)."""
        return shares(self.chunks[steps].astype(np.float64), self.totals[steps])[:, self.by]

    @cached_property
    def chunks(self) -> Ints:
        """Tokens, pairs and keys of the chunks of each step: (steps, 3)."""
        steps = self.history.steps
        found = np.stack(sizes(steps.chunk_tokens, steps.chunk_context))
        return np.diff(np.pad(np.cumsum(found, axis=1), ((0, 0), (1, 0)))[:, offsets(steps.prefills)]).T

    @cached_property
    def totals(self) -> Ints | Floats:
        """Tokens, pairs and keys of all sequences of each step: (steps, 3)."""
        steps = self.history.steps
        keys = steps.decode_context + steps.decodes
        if steps.drafted:
            return self.chunks + np.stack([steps.decodes + steps.drafts, keys * self.width, keys], axis=1)
        return self.chunks + np.stack([steps.decodes, keys, keys], axis=1)

    @cached_property
    def width(self) -> Floats:
        """Tokens of a decode of each step, drafted ones among them, on average; all are taken to have as many."""
        steps = self.history.steps
        return shares((steps.decodes + steps.drafts).astype(np.float64), steps.decodes)

    def of(self, steps: Ints, new: Ints, context: Ints) -> Floats:
        """The share of each part of *steps* for *new* tokens after *context* tokens: (steps, parts)."""
        own = np.stack(sizes(new, context), axis=1)
        return np.minimum(1.0, own / np.maximum(self.totals[steps], 1))[:, self.by]

    @cached_property
    def stretches(self) -> Stretches:
        """The states of each request over time."""
        return Stretches(self.history, self.history.steps.ended)
