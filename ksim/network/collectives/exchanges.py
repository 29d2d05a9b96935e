"""Exchanges in which every rank sends to every other at once, or two do."""

from collections.abc import Iterator, Sequence

from attrs import frozen

from ksim.network.collectives import Round, Transfer
from ksim.network.collectives.all_reduces import TwoShot
from ksim.network.links import ONE_SHOT, POINT_TO_POINT, SYMMETRIC

__all__ = ["Pairwise", "Direct", "Symmetric"]


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
class Direct:
    """One-shot all-reduce: everyone reads everyone's whole message, best for small ones on a switch.

    vLLM's custom all-reduce takes 2 to 8 GPUs of one NVLink domain, or two over PCIe; one-shot is half of it.
    """

    protocols = ONE_SHOT

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (2, 4, 6, 8)

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        everything = tuple(range(len(ranks)))
        yield [Transfer(a, b, everything) for a in ranks for b in ranks if a != b]


@frozen
class Symmetric:
    """All-reduce in PyTorch's symmetric memory, through the switch: vLLM's way between its own all-reduce and NCCL's.

    Small groups do without the switch's adding, which their measured share of the bandwidth says.
    """

    protocols = SYMMETRIC

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (2, 4, 6, 8)

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        return TwoShot().rounds(kind, ranks)
