"""Pairwise exchange: everyone sends to everyone what is theirs, at once; one rank to another where there are two."""

from collections.abc import Iterator, Sequence

from attrs import frozen

from ksim.cost.collectives import Round, Transfer
from ksim.cost.protocols import POINT_TO_POINT

__all__ = ["Pairwise"]


@frozen
class Pairwise:
    """NCCL's grouped send and receive."""

    protocols = POINT_TO_POINT

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_to_all" or (kind == "send" and ranks == 2)

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        if kind == "send":
            yield [Transfer(ranks[0], ranks[1], (0, 1))]
        else:
            n = len(ranks)
            yield [Transfer(ranks[i], ranks[j], (j,)) for i in range(n) for j in range(n) if i != j]
