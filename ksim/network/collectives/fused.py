"""TensorRT-LLM's all-reduce of small messages, which FlashInfer fuses with the norm that follows.

The norm is priced as if it were a kernel of its own: it has to wait for the sum, and with it left out, small steps of
mixtures on two to eight B200 come out 15 to 25 % too short where those on one do not (docs/evidence/silicon.md).
"""

from collections.abc import Iterator, Sequence

from attrs import field, frozen
from attrs.validators import gt

from ksim.network.collectives import Round
from ksim.network.collectives.exchanges import Direct
from ksim.network.links import FUSED

__all__ = ["Fused"]


@frozen
class Fused:
    """Everyone sends everyone the whole message, and adds up what comes: of messages of up to `most` bytes."""

    most: float = field(default=2.0**40, validator=gt(0))
    protocols = FUSED

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (2, 4, 8) and size <= self.most

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        return Direct().rounds(kind, ranks)
