"""One-shot all-reduce: everyone reads everyone's whole message, best for small ones on a switch."""

from collections.abc import Iterator, Sequence

from attrs import frozen

from ksim.network.collectives import Round, Transfer
from ksim.network.protocols import ONE_SHOT

__all__ = ["Direct"]


@frozen
class Direct:
    """vLLM's custom all-reduce takes 2 to 8 GPUs of one NVLink domain, or two over PCIe; one-shot is half of it."""

    protocols = ONE_SHOT

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (2, 4, 6, 8)

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        everything = tuple(range(len(ranks)))
        yield [Transfer(a, b, everything) for a in ranks for b in ranks if a != b]
