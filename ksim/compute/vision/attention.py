"""Attention of patches: each sees all others of its tile, or of its window in the tile."""

from collections.abc import Iterator

import numpy as np
from attrs import frozen

from ksim.compute.graph import Op
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.sweep import KernelSweep
from ksim.compute.sizes import Sizes
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.specs.shard import Shard

__all__ = ["AttendPatches", "PatchAttentionLayer"]


@frozen
class AttendPatches:
    """Queries, keys and values ``tKh`` of each patch; nothing is masked, and nothing is cached.

    With a `window`, tiles are cut into squares of so many patches a side, which attend to themselves.
    """

    label: str = "attention"
    parallel: tuple[tuple[str, str], ...] = (("K", "tensor"),)
    window: int = 0

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.on(self.parallel, shard, self.label).of
        yield Op(self.label, PatchAttentionLayer(local["K"], local["K"], local["h"], self.window))


@frozen
class PatchAttentionLayer(AttentionLayer):
    """Attention's shape on one rank; `window` is the side of the squares that attend to themselves, 0 means tiles."""

    def counts(self, batch: Batch) -> tuple[int, ...]:
        sequences = [pair for image in batch.images for pair in image.sequences(self.window)]
        queries = sum(count * length for count, length in sequences)
        pairs = sum(count * length**2 for count, length in sequences)
        longest = max((length for _, length in sequences), default=0)
        return 0, 0, 0, sum(count for count, _ in sequences), queries, queries, pairs, pairs, longest, longest

    def sweep(self, batches: Batches) -> KernelSweep:
        counts = np.array([self.counts(batch) for batch in batches], dtype=np.int64)
        return KernelSweep.of(self.kernel(list(counts.T)))
