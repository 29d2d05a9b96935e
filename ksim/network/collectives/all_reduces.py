"""All-reduces over the switch, and in two shots."""

from collections.abc import Iterator, Sequence

from attrs import field, frozen
from attrs.validators import gt

from ksim.network.collectives import Round, Transfer
from ksim.network.links import FUSED_TWO_SHOT, NVLS, TWO_SHOT

__all__ = ["TwoShot", "Nvls", "FusedTwoShot"]


@frozen
class TwoShot:
    """Two-shot all-reduce: scatter and reduce at once, then gather at once.

    The other half of vLLM's custom all-reduce: a ring's traffic in two rounds.
    """

    protocols = TWO_SHOT

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (4, 6, 8)

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        pairs = [(i, j) for i in range(len(ranks)) for j in range(len(ranks)) if i != j]
        yield [Transfer(ranks[i], ranks[j], (j,)) for i, j in pairs]
        yield [Transfer(ranks[i], ranks[j], (i,)) for i, j in pairs]


@frozen
class Nvls:
    """NVLS: the switch adds up what all GPUs have, and copies the sum to all; best for large messages.

    NCCL's all-reduce through NVSwitch.

    On Hopper and Blackwell it is seen among eight GPUs and not among four, and in gathering or scattering alone not
    at all: there a ring is as fast.
    """

    protocols = NVLS

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks > 4

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        """To and from the owner of each piece; the two overlap, which is why its share may exceed 1."""
        return TwoShot().rounds(kind, ranks)


@frozen
class FusedTwoShot:
    """TensorRT-LLM's all-reduce of larger messages: scatter and reduce at once, then gather at once.

    The other half of `fused`, of messages of up to `most` bytes.
    """

    most: float = field(default=2.0**40, validator=gt(0))
    protocols = FUSED_TWO_SHOT

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (2, 4, 8) and size <= self.most

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        return TwoShot().rounds(kind, ranks)
