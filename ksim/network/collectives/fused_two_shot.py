"""TensorRT-LLM's all-reduce of larger messages: scatter and reduce at once, then gather at once."""

from collections.abc import Iterator, Sequence

from attrs import field, frozen
from attrs.validators import gt

from ksim.network.collectives import Round
from ksim.network.collectives.two_shot import TwoShot
from ksim.network.protocols import FUSED_TWO_SHOT

__all__ = ["FusedTwoShot"]


@frozen
class FusedTwoShot:
    """The other half of `fused`, of messages of up to `most` bytes."""

    most: float = field(default=2.0**40, validator=gt(0))
    protocols = FUSED_TWO_SHOT

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (2, 4, 8) and size <= self.most

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        return TwoShot().rounds(kind, ranks)
