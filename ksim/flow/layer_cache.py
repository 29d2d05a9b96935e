"""What the layers of a model keep of a request, as a cache manager sees it."""

from attrs import frozen


@frozen
class LayerCache:
    """One layer's cache on one rank: bytes of every token that the layer may still see, or of a sequence of any length.

    A layer with a `window` sees the last so many tokens.  One with a `chunk` sees the tokens of its own chunk, of so
    many.  Without either, it sees all.  A layer that keeps a state has `sequence_bytes` and no `token_bytes`.  Amid a
    chunk of a prompt, it can keep the state after each `checkpoint` tokens; 0: only at the end of a chunk.

    A layer whose kernels need blocks of so many tokens names them as `block_tokens`; 0: those of the engine.  Pages of
    such layers are packed side by side, whatever their sizes.
    """

    token_bytes: float = 0.0
    sequence_bytes: float = 0.0
    window: int = 0
    chunk: int = 0
    checkpoint: int = 0
    block_tokens: int = 0

    @property
    def sees_all(self) -> bool:
        """Whether it needs the keys and values of all tokens."""
        return bool(self.token_bytes) and not self.window and not self.chunk
