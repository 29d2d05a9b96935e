"""The ring: bandwidth-optimal, with a round for every hop."""

from collections.abc import Iterator, Sequence

from attrs import frozen

from ksim.network.collectives import Round, Transfer
from ksim.network.links import NCCL

__all__ = ["Ring"]

_LAPS = {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 2}


@frozen
class Ring:
    """n - 1 rounds to reduce and scatter, n - 1 to gather, both for an all-reduce (Patarasuk and Yuan, 2009)."""

    protocols = NCCL

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind in _LAPS

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        """Pass one piece to the right-hand neighbour per round."""
        n, start = len(ranks), 1 if kind == "all_gather" else 0
        for hop in range(_LAPS[kind] * (n - 1)):
            yield [Transfer(ranks[i], ranks[(i + 1) % n], ((i - hop - 1 + start) % n,)) for i in range(n)]
