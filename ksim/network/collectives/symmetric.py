"""All-reduce in PyTorch's symmetric memory, through the switch: vLLM's way between its own all-reduce and NCCL's."""

from collections.abc import Iterator, Sequence

from attrs import frozen

from ksim.network.collectives import Round
from ksim.network.collectives.two_shot import TwoShot
from ksim.network.protocols import SYMMETRIC

__all__ = ["Symmetric"]


@frozen
class Symmetric:
    """Small groups do without the switch's adding, which their measured share of the bandwidth says."""

    protocols = SYMMETRIC

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (2, 4, 6, 8)

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        return TwoShot().rounds(kind, ranks)
