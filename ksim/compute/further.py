"""Models of further passes of a step: a drafter's, or a vision encoder's."""

from collections.abc import Iterable

from attrs import evolve, field, frozen

from ksim.compute.graph import Block, Op
from ksim.compute.model import Model
from ksim.specs.shard import Shard

__all__ = ["FurtherModel"]


@frozen
class FurtherModel(Model):
    """A model whose launches have `prefix` before their labels, such as "draft.", to tell them from the target's."""

    prefix: str = field(kw_only=True)

    def body(self, tokens: int, shard: Shard, everywhere: int | None = None) -> list[Block]:
        return [Block(self._labelled(block.ops), block.repeat) for block in super().body(tokens, shard, everywhere)]

    def sampled(self, samples: int, shard: Shard) -> tuple[Op, ...]:
        return self._labelled(super().sampled(samples, shard))

    def _labelled(self, ops: Iterable[Op]) -> tuple[Op, ...]:
        return tuple(evolve(op, label=self.prefix + op.label) for op in ops)
