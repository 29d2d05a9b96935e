"""DeepEP: every rank sends its tokens straight to the ranks of their experts, and gets the results back."""

from collections.abc import Iterator, Sequence

from attrs import frozen

from ksim.network.collectives import Round, Transfer
from ksim.network.links import DEEPEP

__all__ = ["DeepEP"]


@frozen
class DeepEP:
    """Its low-latency kernels and its others, over NVLink."""

    protocols = DEEPEP

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind in {protocol.kind for protocol in DEEPEP}

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        n = len(ranks)
        yield [Transfer(ranks[i], ranks[j], (j,)) for i in range(n) for j in range(n) if i != j]
