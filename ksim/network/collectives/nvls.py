"""NVLS: the switch adds up what all GPUs have, and copies the sum to all; best for large messages."""

from collections.abc import Iterator, Sequence

from attrs import frozen

from ksim.network.collectives import Round
from ksim.network.collectives.two_shot import TwoShot
from ksim.network.protocols import NVLS

__all__ = ["Nvls"]


@frozen
class Nvls:
    """NCCL's all-reduce through NVSwitch.

    On Hopper and Blackwell it is seen among eight GPUs and not among four, and in gathering or scattering alone not
    at all: there a ring is as fast.
    """

    protocols = NVLS

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks > 4

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        """To and from the owner of each piece; the two overlap, which is why its share may exceed 1."""
        return TwoShot().rounds(kind, ranks)
