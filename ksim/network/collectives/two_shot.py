"""Two-shot all-reduce: scatter and reduce at once, then gather at once."""

from collections.abc import Iterator, Sequence

from attrs import frozen

from ksim.network.collectives import Round, Transfer
from ksim.network.protocols import TWO_SHOT

__all__ = ["TwoShot"]


@frozen
class TwoShot:
    """The other half of vLLM's custom all-reduce: a ring's traffic in two rounds."""

    protocols = TWO_SHOT

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (4, 6, 8)

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        pairs = [(i, j) for i in range(len(ranks)) for j in range(len(ranks)) if i != j]
        yield [Transfer(ranks[i], ranks[j], (j,)) for i, j in pairs]
        yield [Transfer(ranks[i], ranks[j], (i,)) for i, j in pairs]
