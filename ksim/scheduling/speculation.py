"""What a scheduler asks about speculative decoding: vLLM's `SpeculativeConfig`, and what drafter and model say."""

from typing import Protocol

from ksim.scheduling.job import Job


class Speculation(Protocol):
    """A drafter proposes `k` tokens a step (vLLM's `num_speculative_tokens`), and the model accepts some of them."""

    @property
    def k(self) -> int: ...

    @property
    def lookahead(self) -> int:
        """Slots that each job gets beyond its tokens: k for a drafter with KV of its own, otherwise 0."""
        ...

    @property
    def drops_block(self) -> bool:
        """Whether a prefix hit loses its last block, as with EAGLE whose block keys are plain."""
        ...

    @property
    def keys_ahead(self) -> bool:
        """Whether a block's key covers the first token after it too, as with EAGLE by default: then the names of blocks
        do, and a block is published one token later."""
        ...

    @property
    def input_slots(self) -> int:
        """Tokens of the budget that each scheduled job costs beyond its own: 1 for a draft model, otherwise 0."""
        ...

    def accepted(self, job: Job, drafts: int) -> int:
        """How many of *drafts* drafted tokens of *job*, in the batch just made, the model accepts."""
        ...

    def proposed(self, job: Job) -> int:
        """How many tokens are drafted for *job* after a batch that sampled for it."""
        ...
