"""What one step of an engine computes."""

from collections.abc import Sequence

from attrs import frozen


@frozen
class Batch:
    """Sequences that each compute new tokens on top of tokens they have in the cache.

    Nothing is a decode or a prefill by kind; what sets them apart is how many
    tokens they bring, so sequences with one new token stand on their own.
    """

    #: For each sequence with one new token: the tokens it has in the cache.
    contexts: Sequence[int]
    #: For each sequence with more: (new tokens, tokens it has in the cache).
    chunks: Sequence[tuple[int, int]]
    #: How many sequences reach the end of what they know, so that a token comes out.
    samples: int
    #: New tokens in all.
    tokens: int

    @classmethod
    def of(cls, *sequences: tuple[int, int], samples: int | None = None) -> "Batch":
        """Make a batch of (new, context) pairs; unless told otherwise, all of them sample."""
        return cls(
            contexts=tuple(context for new, context in sequences if new == 1),
            chunks=tuple((new, context) for new, context in sequences if new > 1),
            samples=len(sequences) if samples is None else samples,
            tokens=sum(new for new, _ in sequences),
        )

    @property
    def sequences(self) -> int:
        return len(self.contexts) + len(self.chunks)
