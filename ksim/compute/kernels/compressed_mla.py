"""Attention over a window of latent vectors and over compressed ones beside it (DeepSeek-V4)."""

from attrs import frozen

from ksim.compute.kernels.sparse_mla import SparseLatentAttention
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["CompressedAttention"]


@frozen
class CompressedAttention(SparseLatentAttention):
    """Sparse latent attention whose keys are values, too: all numbers of a vector, rotated ones among them."""

    family = "compressed_mla"


@frozen
class CompressedLayer:
    """The shape on one rank; the batch decides the rest.

    A query sees the last `window` tokens, and for every `stride` tokens before it a compressed vector: the `chosen`
    ones that score best, or all of them without.  Without a `stride` there is the window alone.
    """

    heads: int
    size: int
    window: int
    stride: int = 0
    chosen: int = 0
    cache: DType = DType.BF16

    def over(self, batch: Batch) -> CompressedAttention:
        """The kernel that computes *batch*."""
        sequences = [*((batch.width, context) for context in batch.contexts), *batch.chunks]
        pairs = sum(self.seen(context + new) - self.seen(context) for new, context in sequences)
        keys = sum(min(new + context, self.window + new) + ((new + context) // self.stride if self.stride else 0)
                   for new, context in sequences)
        return CompressedAttention(batch.tokens, keys, pairs, self.heads, self.size, 0, self.cache)

    def seen(self, tokens: int) -> int:
        """How many vectors the first *tokens* of a sequence see, all together."""
        inside = min(tokens, self.window)
        seen = inside * (inside + 1) // 2 + (tokens - inside) * self.window
        if not self.stride:
            return seen
        growing = min(tokens, (self.chosen + 1) * self.stride - 1) if self.chosen else tokens
        whole, rest = divmod(growing, self.stride)
        return seen + self.stride * whole * (whole - 1) // 2 + whole * (rest + 1) + self.chosen * (tokens - growing)
