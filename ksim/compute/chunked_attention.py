"""Attention within chunks of a context: no query sees a token of an earlier chunk (Llama 4)."""

from collections.abc import Iterator

import numpy as np
from attrs import field, frozen
from attrs.validators import ge

from ksim.compute.kernel_sweep import KernelSweep
from ksim.compute.kernels.attention import COUNTS, AttentionLayer
from ksim.flow.batch import Batch, Batches, Contexts

__all__ = ["ChunkedLayer"]


@frozen
class ChunkedLayer(AttentionLayer):
    """Attention within chunks of `chunk` tokens, in one kernel.

    The kernel sees a sequence of its own in each chunk that new tokens are of, as vLLM's does
    (vllm/v1/attention/backends/utils.py, `make_local_attention_virtual_batches`).
    """

    chunk: int = field(default=1, validator=ge(1), kw_only=True)

    def counts(self, batch: Batch) -> tuple[int, ...]:
        """What it counts over *batch* cut into chunks."""
        local = [context % self.chunk for context in batch.contexts]
        fits = batch.width == 1 or max(local, default=0) + batch.width <= self.chunk
        whole = [] if fits else [(batch.width, context) for context in batch.contexts]
        parts = tuple(part for new, context in (*batch.chunks, *whole) for part in self._parts(new, context))
        contexts = Contexts(local) if fits else Contexts()
        return super().counts(Batch(contexts, parts, batch.samples, batch.tokens, width=batch.width))

    def _parts(self, new: int, context: int) -> Iterator[tuple[int, int]]:
        """The (new, context) pairs of each chunk of a sequence that begins with *context* tokens."""
        before = context % self.chunk
        while new > 0:
            part = min(new, self.chunk - before)
            yield part, before
            new, before = new - part, 0

    def sweep(self, batches: Batches) -> KernelSweep:
        """The kernels that compute each of *batches*."""
        columns = np.array([self.counts(batch) for batch in batches], dtype=np.int64).reshape(-1, len(COUNTS)).T.copy()
        return KernelSweep.of(self.kernel([*columns]))
