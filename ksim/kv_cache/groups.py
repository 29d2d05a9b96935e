"""Groups of layers that share a block table: what each keeps of a request, by vLLM's rules (0.33).

vLLM's `kv_cache_interface.py` and `single_type_kv_cache_manager.py` have one class a kind.
"""

from collections.abc import Sequence
from typing import Literal

from attrs import field, frozen
from attrs.validators import ge, gt, in_

Kind = Literal["full", "window", "chunk", "state"]


@frozen
class Group:
    """Layers with one block table for each request, of blocks of `block_tokens` tokens.

    Layers of a "window" see the last `reach` tokens, those of a "chunk" the tokens of the current chunk of `reach`.  A
    "state" is that of the last token; its block at a place is the state at that block's end.  If there is a
    `checkpoint`, the kernels of prompts keep states at multiples of so many tokens on their way, and not only at the
    end of a chunk.  With speculation, each of so many `drafts` has a state of its own until it is accepted; slots
    for `lookahead` tokens of a drafter need none.
    """

    kind: Kind = field(validator=in_(("full", "window", "chunk", "state")))
    block_tokens: int = field(validator=gt(0))
    reach: int = field(default=0, validator=ge(0))
    checkpoint: int = field(default=0, validator=ge(0))
    drafts: int = field(default=0, validator=ge(0))
    lookahead: int = field(default=0, validator=ge(0))

    @property
    def seen(self) -> int:
        """How many tokens a window spans; a state stands for the last token, and the next one looks at it."""
        return 2 if self.kind == "state" else self.reach

    @property
    def sparse(self) -> bool:
        """Whether only the blocks that a later request can use enter the cache."""
        return self.kind in ("window", "state")

    @property
    def needed(self) -> int:
        """How many cached blocks in a row, up to its end, a hit needs in this group."""
        return -(-(self.seen - 1) // self.block_tokens)

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def out_of_reach(self, computed: int) -> int:
        """How many of the first blocks are not needed once *computed* tokens are computed."""
        if self.kind == "full":
            return 0
        if self.kind == "chunk":
            return computed // self.reach * self.reach // self.block_tokens
        return max(0, computed - self.seen + 1) // self.block_tokens

    def most(self, in_flight: int, max_model_len: int) -> int | None:
        """The most blocks that a request holds with at most *in_flight* tokens in flight; None where nothing is
        freed."""
        if self.kind == "window":
            return self.blocks(min(self.reach - 1 + in_flight, max_model_len)) + 1
        if self.kind == "chunk":
            return self.blocks(min(self.reach + in_flight, max_model_len))
        return None

    def keeps_amid(self, start: int, end: int, position: int, unit: int) -> bool:
        """Whether a chunk from *start* to *end* can keep the state after *position* tokens, which hits can end at."""
        earlier = -(-end // self.block_tokens) - 2 > (start - 1) // self.block_tokens
        return (self.checkpoint > 0 and start % unit == 0 and earlier and start + unit <= position < end
                and (position - start) % self.checkpoint == 0)

    def whole_request(self, in_flight: int, max_model_len: int) -> int:
        """How many blocks vLLM sets aside for a request of *max_model_len* tokens when it checks that one fits."""
        if self.kind == "state":
            return 2 + (self.checkpoint > 0) + self.drafts
        return (self.most(in_flight, max_model_len) or self.blocks(max_model_len)) + self.drafts

    def held(self, new: int, context: int) -> int:
        """How many blocks a request holds in a step of *new* tokens after *context* ones."""
        return self.drafts + (1 if self.kind == "state" else self.blocks(context + new) - self.out_of_reach(context))

    def kept_before(self, boundaries: Sequence[int], alignment: int) -> list[tuple[int, int]]:
        """Which places, from and to, a later request needs that goes on at one of *boundaries*, in tokens.

        Of full attention and chunks, vLLM lets all enter the cache.
        """
        if not self.sparse:
            return [(0, 1 << 60)]
        kept: list[tuple[int, int]] = []
        for boundary in sorted(boundaries):
            end = boundary // alignment * alignment // self.block_tokens
            begin = max(end - self.needed, kept[-1][1] if kept else 0)
            if begin < end:
                kept.append((begin, end))
        return kept
