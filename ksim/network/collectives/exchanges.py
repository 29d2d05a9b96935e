"""Exchanges in which every rank sends to every other at once, or two do."""

from collections.abc import Iterator, Sequence

from attrs import frozen

from ksim.network.collectives import Round, Transfer
from ksim.network.links import DEEPEP, POINT_TO_POINT

__all__ = ["Pairwise", "Deepep"]


@frozen
class Pairwise:
    """Pairwise: everyone sends to everyone what is theirs, or all to the next, at once; or one rank to another.

    NCCL's grouped send and receive.
    """

    protocols = POINT_TO_POINT

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind in {"all_to_all", "shift"} or (kind == "send" and ranks == 2)

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        n = len(ranks)
        if kind == "send":
            yield [Transfer(ranks[0], ranks[1], (0, 1))]
        elif kind == "shift":
            yield [Transfer(ranks[i], ranks[(i + 1) % n], tuple(range(n))) for i in range(n)]
        else:
            yield [Transfer(ranks[i], ranks[j], (j,)) for i in range(n) for j in range(n) if i != j]


@frozen
class Deepep:
    """DeepEP: every rank sends its tokens straight to the ranks of their experts, and gets the results back.

    Its low-latency kernels and its others, over NVLink.
    """

    protocols = DEEPEP

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind in {protocol.kind for protocol in DEEPEP}

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        n = len(ranks)
        yield [Transfer(ranks[i], ranks[j], (j,)) for i in range(n) for j in range(n) if i != j]
