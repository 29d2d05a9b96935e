"""What drafts: its models, what it keeps of a token, and the passes that it runs beside a step of its target."""

from collections.abc import Iterator

from attrs import evolve, frozen

from ksim.compute.further import FurtherModel
from ksim.compute.graph import Op
from ksim.compute.notation import Operation
from ksim.compute.sizes import Sizes
from ksim.flow.batch import Batch, Contexts
from ksim.flow.layer_cache import LayerCache
from ksim.specs.shard import Shard

__all__ = ["Borrowed", "Drafter"]


@frozen
class Borrowed:
    """An `operation` with weights of another model: it takes its time, and no memory."""

    operation: Operation

    @property
    def label(self) -> str:
        return self.operation.label

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        return self.operation.lower(sizes, shard)


@frozen
class Drafter:
    """Proposes tokens after each step of a target (vLLM 0.33, v1/worker/gpu/spec_decode).

    The `first` pass goes over all tokens of the step, and over `more` of each sequence; each `later` one over one token
    a sequence.  Memory holds so many `modules`; where they take `turns`, every pass goes over all tokens.  A drafter
    that is not `captured` runs without CUDA graphs.
    """

    first: FurtherModel
    later: FurtherModel
    modules: int = 1
    turns: bool = False
    more: int = 0
    captured: bool = True

    @property
    def name(self) -> str:
        return self.first.name

    def parameters(self) -> int:
        """Weights of its own; what it borrows is not counted."""
        return self.modules * self.first.parameters()

    def weights(self, shard: Shard) -> float:
        """Bytes of its own weights on one rank."""
        return self.modules * self.first.weights(shard)

    def cache_by_layer(self, shard: Shard) -> list[LayerCache]:
        """What each of its layers keeps on one rank."""
        return self.modules * self.first.cache_by_layer(shard)

    def cache_per_token(self, shard: Shard) -> float:
        """Bytes of KV cache that one token takes on one rank."""
        return self.modules * self.first.cache_per_token(shard)

    def first_pass(self, batch: Batch) -> Batch:
        """What the first pass beside *batch* computes: a token comes out for each sequence."""
        if not self.more:
            return evolve(batch, drafts=0)
        chunks = tuple((new + self.more, context) for new, context in batch.chunks)
        return evolve(batch, chunks=chunks, width=batch.width + self.more, drafts=0,
                      tokens=batch.tokens + self.more * batch.sequences)

    def later_passes(self, batch: Batch, tokens: int) -> list[Batch]:
        """What the passes after the first compute, where *tokens* are drafted.

        Sequences are taken to be as long as if all drafts before were accepted.
        """
        if self.turns:
            return [self.first_pass(batch)] * (tokens - 1)
        ends, width = batch.contexts, batch.width + self.more
        offsets = ends.offsets if not batch.chunks else ends.offsets.plus(
            [context + new + self.more - width - ends.shift for new, context in batch.chunks])
        samples = batch.sequences if batch.logits else 0
        return [Batch(Contexts(offsets, ends.shift + width + place), (), samples, batch.sequences)
                for place in range(tokens - 1)]


